"""Documentation, docstrings and help texts use the field's terms, and docstrings begin with a verb or a noun.

Banned words and openings are found with file and line, and the words to use instead.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from headrace.cli.main import main

ROOT = Path(__file__).parents[1]
# word or phrase -> the term to use instead. Each matches whole words, in any case.
BANNED = {
    "world": "environment, copy of the environment",
    "worlds": "environments, copies of the environment",
    "minds": "policies",
    "learning rule": "algorithm",
    "learning rules": "algorithms",
    "people": "users",
    "dead row": "masked step",
    "dead rows": "masked steps",
    "edge row": "bootstrap row",
    "stragglers": "slow workers",
    "pace": "collection",
    "surplus": "entropy error",
    "told": "given, reported",
    "crowd": "agent groups",
    "seat": "slot",
    "seats": "slots",
    "lent": "borrowed",
    "adopt": "attach",
    "adopts": "attaches",
    "engage": "acquire",
    "engages": "acquires",
    "rehearse": "warm up",
    "rehearses": "warms up",
    "thirds": "llvm_tiles",
    "by hand": "manual",
    "film": "video",
    "films": "videos",
    "filmed": "recorded",
    "picture": "image",
    "pictures": "images",
    "anew": "again",
    "dear": "expensive",
    "beside": "next to, in addition to, compared with",
    "who teaches": "which loss trains",
    "whose turn": "which",
    "riddle": "(say it literally)",
    "twin": "counterpart",
    "twins": "counterparts",
    "oracle": "reference implementation",
    "duelling": "dueling",
    "house": "layout",
    "knows nothing": "does not depend on",
    "as it is seen": "(say it literally)",
    "nobody": "(say which part of the program)",
}
PATTERN = re.compile(rf"\b({'|'.join(map(re.escape, sorted(BANNED, key=len, reverse=True)))})\b", re.IGNORECASE)
# first words of a docstring -> how to begin instead
OPENINGS = {
    "whether is are does can may has": "Tell whether ... (of a property: True if ...)",
    "what which whose who that": "the noun: Result of ..., Arguments of ..., Layout of ...",
    "how": "Number of ..., Describe how ..., Way to ...",
    "why": "Reason why ...",
    "where": "Address of ..., Position of ..., Folder of ...",
    "when while": "Time of ..., or the verb",
    "as like": "Same as X(), ...",
    "within inside during": "the verb: Set ... within this block",
    "if unless": "the verb: Raise an error if ...",
    "nothing": "Do nothing: ...",
    "something everything": "the noun",
    "this these those it its they their he she": "the noun that is meant",
    "of for from with without in into by at to on up over under": "a verb or a noun",
    "between across along after before until since": "a verb or a noun",
    "also so but and or not because": "a verb or a noun",
}
INSTEAD = {word: instead for words, instead in OPENINGS.items() for word in words.title().split()}
NOT_OURS = "benchmarks/diagnose/verdicts/strangers/*/*.py"  # scripts that are diagnosed as they were written
# file -> words that it uses in their ordinary meaning
MEANT = {
    "docs/td3.md": {"twin"},  # Twin Delayed Deep Deterministic policy gradients, the paper's name
    "headrace/algorithms/td3.py": {"twin"},
    "headrace/algorithms/sac.py": {"twin"},  # twin critics
}
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "benchmarks/README.md")
HELP = ("--help", "train --help", *(f"train {name} --help" for name in ("ppo", "dqn", "sac")))
HELP += tuple(f"{verb} --help" for verb in ("tune", "eval", "play", "plot", "envs", "check", "diagnose", "export"))


def found(text: str, first_line: int = 1) -> list[tuple[int, str]]:
    """Line and word of each banned word in a text."""
    text = text.replace("\n", " \n")
    return [(first_line + text.count("\n", 0, match.start()), match[0].lower()) for match in PATTERN.finditer(text)]


def docstrings(path: Path) -> list[tuple[int, str]]:
    """First line and text of each docstring of a module."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    owners = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]
    return [
        (node.body[0].lineno, node.body[0].value.value)
        for node in owners
        if ast.get_docstring(node) is not None and isinstance(node.body[0], ast.Expr)
    ]


def complaints(path: Path, texts: list[tuple[int, str]]) -> list[str]:
    """Banned words in the texts of a file, as "file:line: word -> term to use"."""
    name = path.relative_to(ROOT).as_posix()
    return [
        f"{name}:{line}: {word!r} -> {BANNED[word]}"
        for first_line, text in texts
        for line, word in found(text, first_line)
        if word not in MEANT.get(name, ())
    ]


def openings(path: Path) -> list[str]:
    """Docstrings of a file that do not begin with a verb or a noun, as "file:line: opening -> how to begin"."""
    found = [(line, text.split(maxsplit=1)[0].strip(".,:;?!\"'`")) for line, text in docstrings(path)]
    return [
        f"{path.relative_to(ROOT).as_posix()}:{line}: {word!r} -> {INSTEAD[word]}"
        for line, word in found
        if word in INSTEAD
    ]


def test_documents():
    paths = [ROOT / name for name in DOCUMENTS] + sorted((ROOT / "docs").glob("*.md"))
    assert not [text for path in paths for text in complaints(path, [(1, path.read_text())])]


def test_docstrings():
    paths = sorted((ROOT / "headrace").rglob("*.py"))
    assert not [text for path in paths for text in complaints(path, docstrings(path))]


@pytest.mark.parametrize("folder", ["headrace", "benchmarks", "tests"])
def test_docstrings_begin_with_a_verb_or_a_noun(folder):
    paths = [path for path in sorted((ROOT / folder).rglob("*.py")) if not path.match(NOT_OURS)]
    assert not [text for path in paths for text in openings(path)]


@pytest.mark.parametrize("arguments", HELP)
def test_help(arguments, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    try:
        code = main(arguments.split())
    except SystemExit as done:
        code = done.code
    assert not code
    shown = capsys.readouterr().out
    assert shown and not found(shown)


def test_exceptions_are_needed():
    """An exception is removed with the last use of its word, and a folder once it is clean."""
    for name, words in MEANT.items():
        path = ROOT / name
        texts = docstrings(path) if path.suffix == ".py" else [(1, path.read_text())]
        assert words <= {word for first_line, text in texts for _, word in found(text, first_line)}, name


def test_banned_words_are_found_with_their_line():
    text = "Steps of all worlds.\n\nMade anew, not renewed; worldwide.\nThe learning\nrules"
    assert found(text) == [(1, "worlds"), (3, "anew")]


def test_openings_are_found_with_their_line(tmp_path, monkeypatch):
    path = tmp_path / "module.py"
    path.write_text('"""Numbers."""\n\n\ndef one():\n    """Whether it is one."""\n')
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert openings(path) == ["module.py:5: 'Whether' -> Tell whether ... (of a property: True if ...)"]
