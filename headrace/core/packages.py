"""Which packages are installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def installed(package: str, otherwise: str) -> str:
    """The version of a package; `otherwise` where it is not installed, as where Headrace is run from its sources."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return otherwise


def located(package: str) -> Path | None:
    """Where the installed files of a package are to be, by its own name; None where it is not installed."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return Path(str(distribution(package).locate_file(package)))
    except PackageNotFoundError:
        return None


def require(package: str, message: str) -> None:
    """Raise ImportError with a message, which says how to install it, where a package is not installed."""
    if importlib.util.find_spec(package) is None:
        raise ImportError(message)
