"""Builds the package `headrace_diagnose` from Headrace's sources, with its own name in the imports."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[1] / "headrace"
PACKAGE = "headrace_diagnose"
MODULES = ("core/__init__.py", "core/cores.py", "cli/__init__.py", "cli/diagnose.py")
MAIN = '''"""`headrace-diagnose`: prints errors of the user as one line, as `headrace` does."""

from __future__ import annotations

import sys

from headrace_diagnose.cli import diagnose


def main() -> int:
    """Run the command line and return its exit code."""
    try:
        diagnose.main(sys.argv[1:])
    except KeyboardInterrupt:
        return 130
    except (OSError, ValueError, ImportError) as error:
        print(f"headrace-diagnose: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
'''


class CustomBuildHook(BuildHookInterface):
    """Copies the sources before they are packed. From an sdist there is nothing to copy: it holds the copy."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling."""
        if (SOURCES / "diagnose").is_dir():
            copy(SOURCES, HERE / PACKAGE)


def copy(sources: Path, target: Path) -> None:
    """Copy what `diagnose` needs. Raises ValueError if a copied file imports anything else of Headrace."""
    shutil.rmtree(target, ignore_errors=True)
    files = [*(sources / "diagnose").rglob("*"), *(sources / name for name in MODULES)]
    for file in files:
        if not file.is_file() or "__pycache__" in file.parts:
            continue
        copied = target / file.relative_to(sources)
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_text(renamed(file.read_text(encoding="utf-8")) if file.suffix == ".py" else file.read_text())
    (target / "__init__.py").write_text('"""Where the wall time of a training script goes."""\n')
    (target / "__main__.py").write_text(MAIN)
    _check(target)


def renamed(text: str) -> str:
    """A source with imports of this package instead of Headrace's, and the command's name in its texts."""
    text = re.sub(r"\bheadrace\.(?=(?:diagnose|core|cli)\b)", f"{PACKAGE}.", text)
    return re.sub(r"\bheadrace diagnose\b", "headrace-diagnose", text)


def _check(target: Path) -> None:
    for file in target.rglob("*.py"):
        for module in re.findall(r"^\s*(?:from|import) (headrace[\w.]*)", file.read_text(), re.MULTILINE):
            path = target.parent / module.replace(".", "/")
            if not path.with_suffix(".py").exists() and not path.is_dir():
                raise ValueError(f"{file} imports {module}, which is not copied: add it to MODULES in copy_sources.py")
