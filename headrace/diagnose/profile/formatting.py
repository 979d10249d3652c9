"""Human-readable numbers, source locations and lists."""

from __future__ import annotations

from headrace.diagnose.profile.profile import Site


def percent(share: float) -> str:
    """A share in whole percent: "71 %", "under 1 %"."""
    return "under 1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


def times(ratio: float) -> str:
    """A speedup: "1.55x", "12x"."""
    return f"{ratio:.0f}x" if ratio >= 9.95 else f"{ratio:.2f}x"


def duration(seconds: float) -> str:
    """A duration: "38 us", "5.0 ms", "12.3 s"."""
    if seconds < 1e-3:
        return f"{1e6 * seconds:.0f} us"
    return f"{1e3 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def count(number: int, what: str) -> str:
    """ "1 core", "2 cores", "3 processes"."""
    return f"{number:,} {what}" + ("" if number == 1 else "es" if what.endswith("s") else "s")


def at(site: Site | None) -> str:
    """ ", mostly at train.py:41"; "" without a line."""
    return "" if site is None else f", mostly at {place(site)}"


def place(site: Site) -> str:
    """ "train.py:41"."""
    return f"{site.file.replace(chr(92), '/').rpartition('/')[2]}:{site.line}"


def capitalized(text: str) -> str:
    """Only the first letter changed to upper case."""
    return text[:1].upper() + text[1:]


def enumeration(parts: list[str], last: str = " and ") -> str:
    """ "a", "a and b", "a, b and c". last: what is between the last two."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])}{last}{parts[-1]}"
