"""Code of Headrace's own, versions of the installed packages, and the commit of Headrace that runs."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from functools import cache
from pathlib import Path

# what brings a module, where that has another name than an extra of its own package
REQUIREMENTS = {
    "ale_py": "headrace[atari]",
    "envpool": "headrace[envpool]",
    "gymnasium.envs.box2d": "headrace[box2d]",
    "gymnasium.envs.mujoco": "headrace[mujoco]",
    "gymnasium.envs.phys2d": "gymnasium[jax]",
    "gymnasium.envs.tabular": "gymnasium[jax]",
    "mpe2": "headrace[pettingzoo]",
    "pettingzoo": "headrace[pettingzoo]",
}


def of_headrace(code: object) -> bool:
    """True for a function or a class of this package, or the name of a module of it."""
    module = code if isinstance(code, str) else getattr(code, "__module__", None)
    return (module or "").partition(".")[0] == "headrace"


def installed(package: str, otherwise: str) -> str:
    """The version of a package; `otherwise` where it is not installed, as where Headrace is run from its sources."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return otherwise


def located(package: str) -> Path | None:
    """Path that the installed files of a package have by its metadata; None where it is not installed."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return Path(str(distribution(package).locate_file(package)))
    except PackageNotFoundError:
        return None


def require(package: str, message: str) -> None:
    """Raise ImportError with a message, which says how to install it, where a package is not installed."""
    if importlib.util.find_spec(package) is None:
        raise ImportError(message)


def how_to_install(module: str) -> str:
    """The command that installs what a module of environments needs; "" where no extra is known.

    pettingzoo.butterfly.pistonball_v6 needs the extra "butterfly" of pettingzoo."""
    from importlib.metadata import PackageNotFoundError, metadata

    top, *inside = module.split(".")
    needed = REQUIREMENTS.get(".".join([top, *inside[:2]]))
    with suppress(PackageNotFoundError):
        extras = metadata(top).get_all("Provides-Extra") or []
        own = (extra for name in inside if (extra := name.replace("_", "-")) in extras)
        needed = needed or next((f"{top}[{extra}]" for extra in own), None)
    needed = needed or REQUIREMENTS.get(top)
    return f'pip install "{needed}"' if needed else ""


@cache
def commit() -> str:
    """The commit of the checkout that Headrace is run from, in twelve digits; empty where there is none."""
    root = Path(__file__).parents[2]
    with suppress(OSError, UnicodeDecodeError, StopIteration):
        git = root / ".git"
        if git.is_file():  # of a further working tree
            git = root / git.read_text().removeprefix("gitdir:").strip()
        head = (git / "HEAD").read_text().strip()
        branch = head.removeprefix("ref: ")
        if branch == head:
            return head[:12]
        if (git / "commondir").exists():
            git /= (git / "commondir").read_text().strip()
        if (git / branch).exists():
            return (git / branch).read_text().strip()[:12]
        packed = (git / "packed-refs").read_text().splitlines()
        return next(line for line in packed if line.endswith(f" {branch}"))[:12]
    return ""
