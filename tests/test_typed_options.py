"""headrace/__init__.pyi, by which editors complete settings and type checkers find mistakes, is that of the settings
that there are.

After a change of settings or public names: python tests/test_typed_options.py
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from headrace.algorithms.base import ALGORITHMS, algorithm_classes
from headrace.envs.construct import make
from headrace.envs.vector_env.construct_vector import make_vec
from headrace.training.config import TrainConfig

PACKAGE = Path(__file__).parents[1] / "headrace"
STUB = PACKAGE / "__init__.pyi"
HEAD = '''"""Types of the public names, for editors and type checkers. Written by tests/test_typed_options.py."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from headrace.algorithms.base import Algorithm
from headrace.core.types import EnvArgument, Settings
from headrace.envs.construct import Wrappers
from headrace.envs.gym.agent_groups import Grouping
from headrace.envs.registry import Source
from headrace.envs.vector_env.compiled_vector import Output
from headrace.setting_schedules import Schedule
from headrace.tuning.tuner import Tuning
'''
TRAINING = """
class Trainer(_Trainer):
{trainers}

class Training(_Training):
{trainings}

{functions}
"""
OVERLOAD = """@overload
def {name}(
    {first}algorithm: {kind}, env: EnvArgument = None, *, config: str | Path | None = None,
    zoo: str | Path | None = None, {more}**options: {options}
) -> {result}: ...
"""
WIDER = {  # what settings take besides the type that they are kept as
    "tuple[int, ...]": "Sequence[int]",
    "tuple[int, ...] | None": "Sequence[int] | None",
    "tuple[str, ...]": "Sequence[str]",
    "dict[str, Any]": "Mapping[str, Any]",
    "dict[str, Schedule]": "Mapping[str, Schedule]",
}
MORE = {  # and single ones of them
    **dict.fromkeys(("workers", "actors"), "Workers"),
    **dict.fromkeys(("device", "collect_device", "eval_device"), "torch.device"),
    **dict.fromkeys(("replay_order", "init_from", "replay", "log_folder"), "Path"),
    "policy": "type[Policy]",
}


def names(config: type) -> dict[str, str]:
    """The settings of a dataclass with the types that they take."""
    kinds = {field.name: WIDER.get(str(field.type), str(field.type)) for field in fields(config)}
    return {name: f"{MORE[name]} | {kind}" if name in MORE else kind for name, kind in kinds.items()}


def options() -> str:
    """A TypedDict for the settings of each algorithm, one for those that all have, and one for all there are."""
    common, own = names(TrainConfig), {name: names(algorithm_classes(name).config) for name in ALGORITHMS}
    every: dict[str, str] = {}
    for settings in own.values():
        for name, kind in settings.items():  # that of one algorithm may be None, and of another not
            wider = kind if kind.startswith(every.get(name, kind)) else every[name]
            assert wider.removesuffix(" | None") == kind.removesuffix(" | None"), "one name, two types"
            every[name] = wider
    shared = {name: kind for name, kind in every.items() if all(name in settings for settings in own.values())}
    parts = [_typed_dict("Options", "TypedDict", common)]
    parts += [_typed_dict(f"{shown}Options", "Options", own[name]) for name, shown in ALGORITHMS.items()]
    parts += [_typed_dict("SharedOptions", "Options", shared), _typed_dict("EveryOptions", "Options", every)]
    return "\n".join(parts)


def _typed_dict(name: str, base: str, members: dict[str, str]) -> str:
    lines = [f"    {member}: {kind}" for member, kind in members.items()]
    return "\n".join([f"class {name}({base}, total=False):", *lines, ""])


def overloads(name: str, first: str, more: str, result: str, ready: bool = True) -> str:
    """Signatures of a function by algorithm; for one whose name is not known before it runs, the settings that all
    have; for a resumed one or that of a file, all there are; and (ready) for one that was made, none of its own."""
    shared = {"name": name, "first": first, "more": more, "result": result}
    kinds = {f'Literal["{algorithm}"]': f"{shown}Options" for algorithm, shown in ALGORITHMS.items()}
    kinds |= {"str": "SharedOptions", "None = None": "EveryOptions"}
    made = "Algorithm | OnPolicy[Any] | OffPolicy[Any]"  # which some checkers do not know to keep to the protocol
    kinds |= {made: "Options"} if ready else {}
    return "".join(OVERLOAD.format(kind=kind, options=f"Unpack[{its}]", **shared) for kind, its in kinds.items())


def without_kwargs(function: Callable[..., object]) -> str:
    """The signature of a function without **kwargs, for which type checkers have env_kwargs: it would take any name."""
    signature = inspect.signature(function)
    parts, keyword_only = [], False
    for name, given in signature.parameters.items():
        if given.kind is given.VAR_KEYWORD:
            continue
        if given.kind is given.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            parts.append("*")
        plain = isinstance(given.default, int | float | str | None | tuple)
        default = "" if given.default is given.empty else f" = {given.default!r}" if plain else " = ..."
        parts.append(f"{name}: {given.annotation}{default}")
    return f"def {function.__name__}({', '.join(parts)}) -> {signature.return_annotation}: ...\n"


def stub() -> str:
    """The whole file."""
    imports = (PACKAGE / "__init__.py").read_text().split("if TYPE_CHECKING:\n")[1].split("\n\n")[0]
    imports = textwrap.dedent(imports)
    for name in ("Trainer", "Training"):
        imports = imports.replace(f"import {name} as {name}\n", f"import {name} as _{name}\n")
    written = ("train", "tune", "make", "make_vec")
    lines = [line for line in imports.splitlines() if not line.endswith(tuple(f" as {name}" for name in written))]
    of_run = 'resume: str | Path | None = None, on_interrupt: Literal["raise", "return"] = "raise", '
    of_tune = 'seconds: float = 120.0, by: Literal["return", "steps"] = "return", '
    of_tune += "watch: Callable[[str], None] | None = None, "
    trainers = overloads("__init__", "self, ", "agent_info: Any = None, ", "None")
    functions = [overloads("train", "", of_run, "Run"), overloads("tune", "", of_tune, "Tuning", ready=False)]
    parts = {
        "trainers": textwrap.indent(trainers, "    "),
        "trainings": textwrap.indent(overloads("__init__", "self, ", of_run, "None"), "    "),
        "functions": "".join([*functions, without_kwargs(make), without_kwargs(make_vec)]),
    }
    text = "\n".join([HEAD.rstrip(), *lines, "", options()]) + TRAINING.format(**parts)
    for words in (("check", "--fix", "--select", "I"), ("format",)):
        command = [sys.executable, "-m", "ruff", *words, "--quiet", "--stdin-filename", str(STUB), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return text


def test_the_stub_has_the_settings_that_there_are():
    assert STUB.read_text() == stub(), __doc__


RIGHT = """import torch
from pathlib import Path
from typing import Any
import headrace as hr

run = hr.train("ppo", "CartPole-v1", clip=0.1, num_envs=8, hidden=[64, 64], workers=hr.Workers(2))
hr.train("a2c", "CartPole-v1", device=torch.device("cpu"))
hr.train(resume=run.path, total_steps=2_000, learning_rate=1e-4)
trainer = hr.Trainer("sac", hr.make("Pendulum-v1", 4, env_kwargs={"g": 9.81}), utd_ratio=0.5, log_folder=Path("here"))
for name in ("ppo", "dqn"):
    hr.train(name, "CartPole-v1", learning_rate=1e-3, seed=3, max_seconds=None)
own: dict[str, Any] = {"baseline_decay": 0.9}
hr.train("mine.py:VPG", "CartPole-v1", num_envs=8, **own)
with hr.Training("dqn", "CartPole-v1", double=True, resume=None) as training:
    for row in training:
        reveal_type(row.mean_return)
hr.train("ppo", "LunarLander-v3", **hr.tune("ppo", "LunarLander-v3", seconds=60, num_envs=16).settings)
algorithm = hr.PPO(hr.ActorCritic(hr.Box(-1, 1, (2,)), hr.Discrete(2)), hr.PPOConfig(), 0)
hr.train(algorithm, hr.make("CartPole-v1", 8), num_envs=8)
class Net(hr.QNetwork): ...
class Other(hr.ActorQ): ...
class Own(hr.OnPolicy): ...
class Replaying(hr.OffPolicy): ...
hr.train("dqn", "CartPole-v1", policy=Net)
envs = hr.make_vec("CartPole-v1", 8, autoreset_mode="SameStep", output="numpy")
reveal_type(run.path)
def clip(given: hr.PPOOptions) -> float: return given.get("clip", 0.2)
"""
WRONG = """hr.train("ppo", "CartPole-v1", learning_rat=1)
hr.train("ppo", "CartPole-v1", utd_ratio=1)
hr.train("sac", "Pendulum-v1", num_envs="8")
hr.Trainer("dqn", "CartPole-v1", clip=0.1)
hr.Training("ppo", "CartPole-v1", recurrent="gruu")
hr.tune("ppo", "CartPole-v1", by="speed")
hr.tune("ppo", "CartPole-v1", second=3)
hr.train(resume="runs/x", total_step=3)
hr.train(algorithm, "CartPole-v1", clip=0.1)
hr.make("CartPole-v1", 8, backnd="cpu")
hr.make("CartPole-v1", num_envs="8")
hr.make_vec("CartPole-v1", 8, autoreset="SameStep")
hr.trian()
run.pth
clip({"utd_ratio": 1})
"""


@pytest.mark.slow  # mypy reads the package and torch
def test_a_type_checker_finds_each_mistake_and_nothing_else(tmp_path):
    (tmp_path / "script.py").write_text(RIGHT + WRONG)
    command = [sys.executable, "-m", "mypy", "--config-file=", "--ignore-missing-imports", "--disallow-any-generics"]
    settings = {**os.environ, "MYPYPATH": str(PACKAGE.parent)}
    done = subprocess.run([*command, "script.py"], cwd=tmp_path, capture_output=True, text=True, env=settings)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    first, last = RIGHT.count("\n") + 1, (RIGHT + WRONG).count("\n")
    assert {int(line.split(":")[1]) for line in errors} == {*range(first, last + 1)}, "\n".join(errors)
    assert '"learning_rat"' in errors[0] and 'did you mean "learning_rate"' in errors[0]
    assert 'Revealed type is "pathlib.Path"' in done.stdout and '"float | None"' in done.stdout


if __name__ == "__main__":
    STUB.write_text(stub())
