"""Numbers and places as people read them."""

from __future__ import annotations

from headrace.diagnose.profile.profile import Site


def percent(share: float) -> str:
    """A share in whole percents: "71 %", "under 1 %"."""
    return "under 1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


def times(ratio: float) -> str:
    """A gain: "1.55x", "12x"."""
    return f"{ratio:.0f}x" if ratio >= 9.95 else f"{ratio:.2f}x"


def duration(seconds: float) -> str:
    """A duration in a unit that people read: "38 us", "5.0 ms", "12.3 s"."""
    if seconds < 1e-3:
        return f"{1e6 * seconds:.0f} us"
    return f"{1e3 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def count(number: int, what: str) -> str:
    """ "1 core", "2 cores"."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def at(site: Site | None) -> str:
    """ ", most of it at train.py:41"; empty where no line is known."""
    return "" if site is None else f", most of it at {place(site)}"


def place(site: Site) -> str:
    """ "train.py:41"."""
    return f"{site.file.replace(chr(92), '/').rpartition('/')[2]}:{site.line}"


def capital(words: str) -> str:
    """The first letter in upper case, the rest as it is."""
    return words[:1].upper() + words[1:]


def sentence(parts: list[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
