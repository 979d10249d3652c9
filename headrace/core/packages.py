"""Which packages are installed."""

from __future__ import annotations

import importlib.util


def installed(package: str, otherwise: str) -> str:
    """The version of a package; `otherwise` where it is not installed, as where Headrace is run from its sources."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return otherwise


def require(package: str, message: str) -> None:
    """Raise ImportError with a message, which says how to install it, where a package is not installed."""
    if importlib.util.find_spec(package) is None:
        raise ImportError(message)
