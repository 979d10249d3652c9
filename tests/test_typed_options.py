"""headrace/__init__.pyi, from which editors complete settings, is that of the settings that there are.

After a change of settings or public names: python tests/test_typed_options.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import fields
from pathlib import Path

import pytest

from headrace.algorithms.registry import ALGORITHMS, algorithm_classes
from headrace.training.config import TrainConfig

PACKAGE = Path(__file__).parents[1] / "headrace"
STUB = PACKAGE / "__init__.pyi"
HEAD = '''"""Types of the public names, for editors and type checkers. Written by tests/test_typed_options.py."""

from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

from headrace.algorithms.base import Algorithm
from headrace.core.types import EnvArgument
'''
TRAINING = """
class Trainer(_Trainer):
{trainers}

{trains}
"""
OVERLOAD = """@overload
def {name}(
    {first}algorithm: {kind}, env: EnvArgument = None, *, config: str | Path | None = None, {more}**options: {options}
) -> {result}: ...
"""


def names(config: type) -> dict[str, str]:
    """The settings of a dataclass with their types as they are written."""
    return {field.name: str(field.type) for field in fields(config)}


def options() -> str:
    """A TypedDict for the settings of each algorithm."""
    common = names(TrainConfig)
    for name in ("workers", "actors"):
        common[name] = f"Workers | {common[name]}"
    parts = [_typed_dict("Options", "TypedDict", common)]
    for name, shown in ALGORITHMS.items():
        parts.append(_typed_dict(f"{shown}Options", "Options", names(algorithm_classes(name).config)))
    return "\n".join(parts)


def _typed_dict(name: str, base: str, members: dict[str, str]) -> str:
    lines = [f"    {member}: {kind}" for member, kind in members.items()]
    return "\n".join([f"class {name}({base}, total=False):", *lines, ""])


def overloads(name: str, first: str, more: str, result: str) -> str:
    """Signatures of a function by algorithm, and one for all else."""
    shared = {"name": name, "first": first, "more": more, "result": result}
    own = [
        OVERLOAD.format(kind=f'Literal["{algorithm}"]', options=f"Unpack[{shown}Options]", **shared)
        for algorithm, shown in ALGORITHMS.items()
    ]
    rest = OVERLOAD.format(kind="str | Algorithm | None = None", options="Any", **shared)
    return "".join([*own, rest])


def stub() -> str:
    """The whole file."""
    imports = (PACKAGE / "__init__.py").read_text().split("if TYPE_CHECKING:\n")[1].split("\n\n")[0]
    imports = textwrap.dedent(imports).replace("import Trainer as Trainer", "import Trainer as _Trainer")
    imports = "\n".join(line for line in imports.splitlines() if "import train as train" not in line)
    trainers = textwrap.indent(overloads("__init__", "self, ", "agent_info: Any = None, ", "None"), "    ")
    interrupt = 'resume: str | Path | None = None, on_interrupt: Literal["raise", "return"] = "raise", '
    trains = overloads("train", "", interrupt, "Run")
    text = f"{HEAD}{imports}\n\n{options()}{TRAINING.format(trainers=trainers, trains=trains)}"
    for words in (("check", "--fix", "--select", "I"), ("format",)):
        command = [sys.executable, "-m", "ruff", *words, "--quiet", "--stdin-filename", str(STUB), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return text


def test_the_stub_has_the_settings_that_there_are():
    assert STUB.read_text() == stub(), __doc__


@pytest.mark.slow  # mypy reads the package and torch
def test_a_type_checker_knows_an_algorithms_settings(tmp_path):
    (tmp_path / "script.py").write_text(
        "import headrace as hr\n"
        'run = hr.train("ppo", "CartPole-v1", clip=0.1, num_envs=8, workers=hr.Workers(2))\n'
        'trainer = hr.Trainer("sac", "Pendulum-v1", utd_ratio=0.5)\n'
        "reveal_type(run.path)\nreveal_type(trainer.iterate().mean_return)\n"
        "def settings(given: hr.PPOOptions) -> float:\n    return given['clip'] + given['utd_ratio']\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file=", "--ignore-missing-imports", "script.py"]
    settings = {**os.environ, "MYPYPATH": str(PACKAGE.parent)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=settings)
    assert 'Revealed type is "pathlib.Path"' in done.stdout and '"float | None"' in done.stdout, done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith("script.py") and "error" in line]
    assert len(lines) == 1 and lines[0].startswith("script.py:7") and '"utd_ratio"' in lines[0], done.stdout


if __name__ == "__main__":
    STUB.write_text(stub())
