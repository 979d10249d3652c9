"""The documents of the repository, their commands and their blocks of Python."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.cli.main import VERBS

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
SMALL = {
    "train": "--total-steps 1 --final-episodes 1 --progress plain",
    "eval": "--episodes 2",
    "play": "--max-steps 10",
    "sweep": "--trials 1 --total-steps 50 --num-envs 4 --hidden 8 --final-episodes 1",
    "check": "--steps 20 --measure 0",
}


def name(document: Path) -> str:
    return str(document.relative_to(ROOT))


def commands(*documents: Path) -> dict[str, str]:
    """Each `headrace` command without placeholders -> the first document that has it; of all documents by default."""
    found: dict[str, str] = {}
    for document in documents or DOCUMENTS:
        text = document.read_text()
        lines = [
            re.sub(r"^\s*(\$ )?|\s+#.*$", "", line)
            for line in text.splitlines()
            if re.match(r" {4}|\$ |headrace", line)
        ]
        for command in [*lines, *re.findall(r"`(headrace \w+ [^`]+)`", text)]:
            words = command.split()
            placeholder = "..." in command or any(word.isupper() and word.isalpha() for word in words)
            if words[:1] == ["headrace"] and words[1:2] and words[1] in VERBS and not placeholder:
                found.setdefault(command, name(document))
    return found


def blocks(document: Path) -> list[str]:
    return [rest.split("```")[0] for rest in document.read_text().split("```python\n")[1:]]
