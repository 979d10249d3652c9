"""The scripts of `benchmarks/diagnose/verdicts`, and what is known of them."""

from __future__ import annotations

import hashlib
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common import Row

FOLDER = Path(__file__).parent / "verdicts"
SETS = {
    "planted": FOLDER,
    "ablated": FOLDER / "ablated",
    "strangers": FOLDER / "strangers",
}  # each with a folder `open`
HALVES = ("open", "sealed")
SHA256 = {  # of the archives of the sets that have one
    "planted": "df9840f0ee84be739dd8ee935042ff2da825a20dd1bbdf25a38d76f380ab8c01",
    "ablated": "ed6ef70b57d6e502ba1dc8cec61049f3a8afb1d1fc040d109b7c0207b4034a34",
}
MEASURED = FOLDER / "measured.toml"  # what ablations of planted scripts measured
KINDS = {  # words of the ablated scripts' truth -> the kind of verdict
    "acting": "policy inference",
    "environment": "environments",
    "data": "data handling",
    "other:jit": "set-up made again",
    "other:opponents": "reading files",
}


def scripts(which: str, half: str, folder: Path) -> Iterator[tuple[Path, Row]]:
    """Each script of a half of a set, and its truth; none of a half that there is not. folder: for the sealed half."""
    if half == "sealed" and which not in SHA256:
        return
    found = SETS[which] / "open" if half == "open" else unpack(which, folder)
    measured = tomllib.loads(MEASURED.read_text())
    for name, truth in tomllib.loads(next(found.rglob("truth.toml")).read_text()).items():
        yield next(found.rglob(f"{name}.py")), truth | measured.get(name, {})


def unpack(which: str, folder: Path) -> Path:
    """The sealed half of a set, unpacked into a folder.

    Raises ValueError if the archive is not the one that was committed.
    """
    archive = SETS[which] / "sealed.tar.gz"
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SHA256[which]:
        raise ValueError(
            f"{archive} has SHA-256 {found}, not {SHA256[which]}: it is not the archive that was committed"
        )
    with tarfile.open(archive) as files:
        # Python 3.11.3 and earlier have no filters; the archive is the one that was committed
        files.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return folder


def kinds_of(truth: Row) -> list[str]:
    """The kinds of verdict that are right: those that were planted, or the main cost by ablation."""
    if "kinds" in truth:
        return list(truth["kinds"])
    words = [KINDS.get(truth["main_part"]) or KINDS.get(truth["kind"], truth["kind"]), *truth["also_right"]]
    return [KINDS.get(word, word) for word in words]


def changed(text: str, changes: list[list[str]], name: str) -> str:
    """A script's text after changes, pairs of text before and after. Raises ValueError where one does not fit."""
    for old, new in changes:
        if old not in text:
            raise ValueError(f"{name} does not contain {old!r}")
        text = text.replace(old, new)
    return text
