"""The command that a user typed after `headrace diagnose`: a script, a module, or a whole command line."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path


def resolve(words: Sequence[str], python: str) -> list[str]:
    """The command line of ["train.py", ...], ["-m", "module", ...], ["python", "train.py", ...] or ["torchrun", ...].

    python: the interpreter of scripts and modules. Programs are searched next to it first, then on PATH.
    Raises ValueError without words, and FileNotFoundError for a missing interpreter, script or program.
    """
    if not words:
        raise ValueError("name a script to diagnose, or -m and a module")
    if (interpreter := shutil.which(python)) is None:
        raise FileNotFoundError(f"there is no Python interpreter {python!r}")
    if words[0].startswith("-") or (Path(words[0]).is_file() and not _is_python(words[0])):
        return [python, *words]
    program = _program(words[0], Path(interpreter).parent)
    if program is None:
        raise FileNotFoundError(f"there is no script {words[0]!r}, and no program of that name")
    script = next((word for word in words[1:] if not word.startswith("-")), "")
    if _is_python(words[0]) and "-m" not in words and "-c" not in words and not Path(script).exists():
        raise FileNotFoundError(f"there is no script {script!r}")
    return [program, *words[1:]]


def title(words: Sequence[str]) -> str:
    """The name of what is run: the script without its suffix, the module, or else the program."""
    if "-m" in words[:-1]:
        return words[list(words).index("-m") + 1].rpartition(".")[2]
    scripts = [Path(word).stem for word in words if word.endswith(".py")]
    return next(iter(scripts), Path(words[0]).name)


def _program(name: str, folder: Path) -> str | None:
    """The path of a program. A plain `python` is the one on PATH, as in a shell."""
    nearby = None if _is_python(name) else shutil.which(name, path=str(folder))
    return nearby or shutil.which(name)


def _is_python(name: str) -> bool:
    """Tell whether this is an interpreter, by name or by path; python_train.py is a script."""
    return Path(name).name.startswith("python") and not name.endswith(".py")
