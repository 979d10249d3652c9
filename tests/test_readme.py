"""README.md is short, and its commands run in the order in which it has them, with what it installs."""

from __future__ import annotations

import importlib.metadata
import re
import shlex
import subprocess
import sys
import tomllib

from helpers.documents import ROOT, SMALL, commands

from headrace.cli.main import main

README = ROOT / "README.md"


def test_its_commands_need_only_what_it_installs(tmp_path, monkeypatch, capsys):
    readme = README.read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (asked,) = re.findall(r'pip install -e "\.\[([\w,]+)\]"', readme)
    wanted = {packages(extra, extras) for extra in asked.split(",")}
    for extra in extras.keys() - {"dev"}:
        for package in packages(extra, extras) - frozenset().union(*wanted):
            monkeypatch.setitem(sys.modules, package, None)  # importing it is an ImportError
    monkeypatch.chdir(tmp_path)
    tried = [command for command in commands(README) if "diagnose" not in command]
    assert {command.split()[1] for command in tried} >= {"train", "eval", "plot", "play", "export"}
    for command in tried:
        verb, *rest = shlex.split(command)[1:]
        assert main([verb, *rest, *SMALL.get(verb, "").split()]) == 0, capsys.readouterr().err


def packages(extra: str, extras: dict[str, list[str]]) -> frozenset[str]:
    """The packages of an extra that can be imported by their own names."""
    distributions = {re.split(r"[\[<>=; ]", needed)[0].lower() for needed in extras[extra]} - {"gymnasium", "numpy"}
    found = importlib.metadata.packages_distributions().items()
    return frozenset(name for name, homes in found if distributions & {home.lower() for home in homes})


def test_make_demo_runs_its_commands():
    done = subprocess.run(["make", "-n", "demo"], cwd=ROOT, capture_output=True, text=True, check=True)
    verbs = re.findall(r"bin/headrace (\w+)", done.stdout)
    assert verbs == [command.split()[1] for command in commands(README) if "CartPole" in command]


def test_it_is_easy_to_read():
    for name, most in {"README.md": 120, "CHANGELOG.md": 80}.items():
        lines = (ROOT / name).read_text().splitlines()
        assert len(lines) <= most and max(map(len, lines)) <= 120, name
    rows = [line for line in README.read_text().splitlines() if line.startswith("| ")]
    cells = [re.sub(r"\(\S*\)|`.*?`", "", cell) for row in rows for cell in row.split("|")]  # without links and code
    assert not [cell for cell in cells if len(re.findall(r"(?<![\w.-])\d[\d,.]*", cell)) > 1]


def test_the_first_page_of_the_site_names_all_extras():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    page = (ROOT / "docs" / "index.md").read_text()
    assert not [extra for extra in extras - {"dev", "docs"} if not re.search(rf"[`\[,]{extra}[`\],]", page)]
