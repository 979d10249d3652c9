"""Kernels are compiled ahead by other processes: the list of them is that of what trainings ask for."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))  # where this is run as a program

import headrace as hr
from headrace import bindings
from headrace.kernels.runtime import ahead, cache, entry_points
from headrace.kernels.runtime.cache import folder
from headrace.kernels.runtime.cache_folder import is_locked, locked
from headrace.kernels.runtime.native import kind

ALIKE = (  # algorithms whose trainings ask for the same, of which the first is run
    ("ppo", "appo"),
    ("a2c", "impala", "reinforce"),
    ("trpo",),
    ("pqn",),
    ("dqn",),
    ("sac", "td3", "ddpg", "tqc"),
    ("qrdqn", "c51", "discrete_sac", "crossq"),
)
SMALL = {"num_envs": 32, "total_steps": 5000, "progress": "none", "hidden": (8,), "registered": False, "scale": False}
OFF_POLICY = {"learning_starts": 64, "batch_size": 16}
TWICE = "rows.targets.cpu_objectives.learn"  # for losses of two kinds, of which the file has one
LARGE = 8_000  # bytes of machine code


class Deeper(hr.ActorCritic):
    def __init__(self, observation_space, action_space, hidden=(8,), seed=0):
        super().__init__(observation_space, action_space, hidden=hidden, seed=seed)
        self.actor = nn.Sequential(self.actor, nn.LayerNorm(hidden[-1]))


def trainings() -> Iterator[tuple[str, list[str], tuple[str, str, dict]]]:
    """Yield each kind of training: its name, others that ask for the same, and (algorithm, environment, settings)."""
    for name, *others in ALIKE:
        env = "Pendulum-v1" if name == "sac" else "CartPole-v1"
        more = OFF_POLICY if name in ("dqn", "sac", "qrdqn") else {}
        yield name, others, (name, env, more)
        yield f"{name} in Python", [f"{x} in Python" for x in others], (name, env, more | {"backend": "inline"})
    yield "ppo own policy", ["appo own policy"], ("ppo", "CartPole-v1", {"policy": Deeper})
    yield "ppo recurrent", ["appo recurrent"], ("ppo", "CartPole-v1", {"recurrent": "gru", "minibatch_size": 512})


def modules_of(argument) -> set[str]:
    """The modules of the named tuples in an argument."""
    inner = {name for part in argument for name in modules_of(part)} if isinstance(argument, tuple) else set()
    return inner | ({type(argument).__module__} if hasattr(argument, "_fields") else set())


def asked(which: str) -> list[tuple[str, str, str, list[str]]]:
    """List the entry points with much code that a kind of training asks for: names, the types of their arguments,
    announcements and the types' modules, largest first. Once in a process, since calls are kept."""
    for module in pkgutil.walk_packages(bindings.__path__, f"{bindings.__name__}."):
        importlib.import_module(module.name)
    found: dict[str, tuple[int, str, str, list[str]]] = {}
    usual = entry_points.entry

    def noted(name, function, arguments, announcement):
        native, types = usual(name, function, arguments, announcement), kind(arguments)
        size = (folder() / entry_points.file_name(name, function, types)).stat().st_size
        found.setdefault(f"{name}.{function}", (size, types, announcement, sorted(modules_of(arguments))))
        return native

    for module in [module for module in sys.modules.values() if getattr(module, "entry", None) is usual]:
        module.entry = noted
    algorithm, env, more = next(arguments for name, _, arguments in trainings() if name == which)
    with tempfile.TemporaryDirectory() as runs:
        hr.train(algorithm, env, **SMALL | {"log_folder": runs} | more)
    large = sorted((size, name) for name, (size, *_) in found.items() if size > LARGE)
    return [(name, *found[name][1:]) for _, name in reversed(large)]


def asked_alone(which: str) -> list[list[str]]:
    """asked() of a process of its own."""
    command = [sys.executable, __file__, which]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=os.environ | {ahead.SWITCH: "0"})
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("which", ["ppo", "dqn in Python", "qrdqn", "ppo own policy", "ppo recurrent"])
def test_the_file_has_what_trainings_ask_for(which):
    found, known = asked_alone(which), ahead.known()
    # largest first: two of nearly one size change places from processor to processor
    assert sorted(name for name, *_ in found) == sorted(known["trainings"][which]), __doc__
    assert all(known["entries"][name] == rest for name, *rest, _ in found if name != TWICE)
    assert {module for *_, modules in found for module in modules} <= set(known["modules"])


def test_every_kind_of_training_is_in_the_file():
    assert set(ahead.known()["trainings"]) == {name for first, others, _ in trainings() for name in (first, *others)}


@pytest.mark.parametrize("name", ahead.known()["entries"])
def test_arguments_have_the_types_that_are_written(name):
    types, _ = ahead.known()["entries"][name]
    assert kind(ahead.arguments(types)) == types


SHORT = "learning.permutations.permutations"


@pytest.fixture
def one(monkeypatch, tmp_path):
    """A kind of training with one entry point, which is compiled in a second; an empty cache."""
    entry = ["tuple[](int,<i81Cw,<i82Cw)", "compiling ..."]
    table = {"modules": [], "trainings": {"one": [SHORT]}, "entries": {SHORT: entry}}
    monkeypatch.setattr(ahead, "known", lambda: table)
    monkeypatch.setattr(ahead, "_started", set())
    monkeypatch.setattr(cache, "_entries", {})
    for module in (ahead, cache):
        monkeypatch.setattr(module, "folder", lambda: tmp_path)
    monkeypatch.setattr(cache, "folders", lambda: (tmp_path,))


def test_compile_all_leaves_what_another_process_compiles(one, tmp_path):
    path = tmp_path / ahead._file(SHORT)
    with locked(path.with_suffix(".lock")):
        assert is_locked(path.with_suffix(".lock"))
        ahead.compile_all([SHORT], os.getppid())
        assert not path.exists()
    assert not is_locked(path.with_suffix(".lock"))
    ahead.compile_all([SHORT], os.getppid() + 1)  # whose parent has ended
    assert not path.exists()
    ahead.compile_all([SHORT], os.getppid())
    assert path.exists()


@pytest.mark.parametrize("cores", [1, 2, 8])
def test_processes_are_as_many_as_cores_and_entry_points(one, cores, monkeypatch):
    started = []
    monkeypatch.setattr(ahead.subprocess, "Popen", lambda command, **options: started.append(command))
    monkeypatch.setenv(ahead.SWITCH, "1")
    ahead.start("one", cores)
    ahead.start("one", cores)
    ahead.start("a kind of training that is not known", cores)
    assert len(started) == (cores > 1)
    monkeypatch.setattr(ahead, "_started", set())
    monkeypatch.setenv(ahead.SWITCH, "0")
    ahead.start("one", cores)
    assert len(started) == (cores > 1)


if __name__ == "__main__":
    if sys.argv[1:]:
        print(json.dumps(asked(sys.argv[1])))
    else:
        everything = {(first, *others): asked_alone(first) for first, others, _ in trainings()}
        names = {which: [name for name, *_ in found] for alike, found in everything.items() for which in alike}
        kinds = {name: rest for found in reversed(everything.values()) for name, *rest, _ in found}
        modules = sorted({name for found in everything.values() for *_, modules in found for name in modules})
        table = {"modules": modules, "trainings": names, "entries": kinds}
        ahead.FILE.write_text(json.dumps(table, indent=1) + "\n")
