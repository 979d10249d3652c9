"""make(), and everything it takes and refuses."""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import sys
import textwrap
import warnings

import gymnasium
import pytest

from headrace import envs
from headrace.data.rollout import Rollout
from headrace.data.spaces import action_column, env_columns
from headrace.envs import sources
from headrace.envs.builtin.cartpole import CartPole
from headrace.envs.compiled.env import CompiledEnv
from headrace.envs.gym.inline import InlineEnv

NAMES = [
    "CartPole-v1",
    "Acrobot-v1",
    "Pendulum-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Catch",
    "GridWorld",
    "PixelCatch",
    "PixelPendulum",
    "ConnectFour",
    "ConnectFourPlayers",
    "BitFlip",
    "Reach",
    "Pursuit",
    "Flock",
    "Tag",
    "IonTrap",
    "CartPoleHidden",
    "PendulumHidden",
    "Switchback",
]

MINE = """
    from typing import NamedTuple

    import gymnasium
    import numpy as np

    from headrace.envs.compiled.kernel_env import KernelEnv
    from headrace.kernels.language.ops import f32
    from headrace.data.spaces import Box, Discrete
    from my_neighbour import SPEED


    class Slide(KernelEnv):
        observation_space = Box(-9, 9, (1,))
        action_space = Discrete(2)
        max_steps = 5

        class State(NamedTuple):
            x: f32

        def reset(s, p, key):
            return Slide.State(0.0)

        def step(s, p, action, key):
            x = s.x + (SPEED if action == 1 else -SPEED)
            return Slide.State(x), x, False

        def observe(s, p):
            return (s.x,)


    class Still(gymnasium.Env):
        observation_space = Box(-1, 1, (2,))
        action_space = Discrete(2)

        def __init__(self, level=0.0):
            self.level = level

        def reset(self, *, seed=None, options=None):
            return np.full(2, self.level, np.float32), {}

        def step(self, action):
            return np.full(2, self.level, np.float32), 0.0, False, False, {}


    def make_still():
        return Still(0.5)


    if "Still-v3" not in gymnasium.registry:
        gymnasium.register("Still-v3", entry_point=Still)
"""


@pytest.fixture
def my_file(tmp_path):
    """A user's file with one environment of each sort, which imports its neighbour."""
    (tmp_path / "my_neighbour.py").write_text("SPEED = 0.5\n")
    path = tmp_path / "my_slide.py"
    path.write_text(textwrap.dedent(MINE))
    return path


def first_observation(env):
    rollout = Rollout(1, env.num_envs, env_columns(env.observation_space) | {"action": action_column(env.action_space)})
    env.reset(rollout, seed=0)
    return rollout.observation[0]


# ---- what make() takes


def test_names_compile_and_run_inline_when_asked():
    assert isinstance(envs.make("CartPole-v1", 2), CompiledEnv)
    original = envs.make("CartPole-v1", 2, backend="inline")
    assert isinstance(original, InlineEnv) and original.envs[0].spec.id == "CartPole-v1"
    assert original.name == envs.make("CartPole-v1", 2).name == "CartPole-v1"


def test_make_does_not_choose_a_device():
    for name in ("CartPole-v1", "FrozenLake-v1"):
        assert envs.make(name, 2).device.type == "cpu"
        with pytest.raises(ValueError, match="'auto' is train\\(\\)'s choice by the number of weights"):
            envs.make(name, 2, device="auto")


def test_gymnasium_ids_run_inline():
    env = envs.make("FrozenLake-v1", 2, map_name="8x8")
    assert isinstance(env, InlineEnv) and env.name == "FrozenLake-v1"
    assert env.observation_space.n == 64


def test_classes_files_modules_and_functions(my_file):
    compiled = envs.make(f"{my_file}:Slide", 3)
    assert isinstance(compiled, CompiledEnv) and compiled.num_envs == 3
    still = envs.make(f"{my_file}:Still", 2, level=0.25)
    assert first_observation(still).tolist() == [[0.25, 0.25]] * 2
    assert first_observation(envs.make(f"{my_file}:make_still", 1)).tolist() == [[0.5, 0.5]]
    assert isinstance(envs.make("headrace.envs.builtin.cartpole:CartPole", 1), CompiledEnv)
    assert isinstance(envs.make(CartPole, 1), CompiledEnv)
    import my_slide  # the file is a module like any other by now

    assert first_observation(envs.make(my_slide.make_still, 1)).tolist() == [[0.5, 0.5]]
    assert first_observation(envs.make(functools.partial(my_slide.Still, level=0.75), 1)).tolist() == [[0.75, 0.75]]
    assert isinstance(envs.make("my_slide:Still-v3", 1), InlineEnv)


def test_names_lead_back_to_the_same_environment(my_file):
    for source in (f"{my_file}:Slide", f"{my_file}:Still", "CartPole-v1", CartPole):
        name = envs.make(source, 1).name
        assert envs.make(name, 1).name == name
    cls = envs.sources.find(f"{my_file}:Slide")
    assert envs.make(cls, 1).name == f"{my_file}:Slide"
    assert envs.make(CartPole, 1).name == "CartPole-v1"


def test_an_edited_file_is_read_anew(my_file):
    assert envs.make(f"{my_file}:make_still", 1).envs[0].level == 0.5
    my_file.write_text(my_file.read_text().replace("Still(0.5)", "Still(-0.5)"))
    changed = my_file.stat().st_mtime_ns + 1
    os.utime(my_file, ns=(changed, changed))
    assert envs.make(f"{my_file}:make_still", 1).envs[0].level == -0.5


def test_worlds_without_an_original_run_inline_in_plain_python():
    env = envs.make("Catch", 2, backend="inline")
    assert isinstance(env, InlineEnv)
    rollout = Rollout(10, 2, env_columns(env.observation_space) | {"action": action_column(env.action_space)})
    env.reset(rollout, seed=0)
    for t in range(10):
        rollout.action[t] = 1
        env.step(rollout, t)
    assert rollout.terminated[8].all() and rollout.episode_length[9].tolist() == [9, 9]


def test_factory_gives_the_original():
    assert envs.factory("CartPole-v1")().spec.id == "CartPole-v1"
    picture = envs.factory("CartPole-v1", render_mode="rgb_array")()
    assert picture.render_mode == "rgb_array"
    picture.close()


# ---- register and spec


def test_registered_names_carry_defaults(my_file):
    envs.register("Slide-v0", f"{my_file}:Slide", {"ppo": {"num_envs": 8, "total_steps": 1000}})
    assert envs.spec("Slide-v0").defaults["ppo"] == {"num_envs": 8, "total_steps": 1000}
    assert envs.make("Slide-v0", 2).name == "Slide-v0"
    assert envs.spec(f"{my_file}:Slide").name == "Slide-v0"
    assert "Slide-v0" in [row.name for row in envs.listing()]


def test_a_class_finds_its_registered_defaults():
    assert envs.spec(CartPole) == envs.spec("CartPole-v1") == envs.spec("headrace.envs.builtin.cartpole:CartPole")
    assert envs.spec("Blackjack-v1").defaults == {}


def test_a_gymnasium_id_may_have_defaults_of_its_own():
    envs.register("MyLake", "gymnasium:FrozenLake-v1", {"ppo": {"total_steps": 7}})
    assert envs.make("MyLake", 1).envs[0].spec.id == "FrozenLake-v1"
    envs.register("FrozenLake-v1", "FrozenLake-v1", {"ppo": {"total_steps": 8}})
    assert envs.make("FrozenLake-v1", 1).envs[0].spec.id == "FrozenLake-v1"
    assert envs.spec("FrozenLake-v1").defaults["ppo"]["total_steps"] == 8


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_settings_that_exist(name):
    """A misspelt default would be ignored, or break training in that environment alone."""
    from headrace.algorithms.base import algorithm_classes
    from headrace.training.config import TrainConfig

    defaults = envs.spec(name).defaults
    assert defaults
    for algorithm, settings in defaults.items():
        configs = (algorithm_classes(algorithm)[1], TrainConfig)
        assert set(settings) <= {field.name for config in configs for field in dataclasses.fields(config)}, algorithm


def test_listing_tells_what_each_world_is():
    rows = {row.name: row for row in envs.listing()}
    assert list(rows) == NAMES
    cartpole = rows["CartPole-v1"]
    assert cartpole.observation_space == CartPole.observation_space
    assert cartpole.action_space == CartPole.action_space
    assert cartpole.source == "headrace.envs.builtin.cartpole:CartPole"
    batched = {name for name, row in rows.items() if "torch" in row.backends}
    assert batched == set(NAMES) - {"GridWorld", "ConnectFour", "ConnectFourPlayers", "BitFlip", "Tag"}
    assert all({"cpu", "inline"} <= set(row.backends) for row in rows.values())


# ---- what make() refuses


@pytest.mark.parametrize(
    ("source", "error", "says"),
    [
        ("CartPole", ValueError, "no environment 'CartPole'; did you mean 'CartPole-v1'"),
        ("cartpole-v1", ValueError, "did you mean 'CartPole-v1'"),
        ("gridworld", ValueError, "did you mean 'GridWorld'"),
        ("LunarLander-v2", ValueError, "did you mean 'LunarLander-v3'"),
        ("Taxi-v3", ValueError, "did you mean 'Taxi-v4'"),  # has settings; gone since Gymnasium 1.4
        ("zzzzzz", ValueError, "`headrace envs` lists"),
        ("some/Thing-v5", ValueError, "the ids of some/ registers them when imported: write 'package:some/Thing-v5'"),
        ("tests/my_env", ValueError, "for a class in a file, write tests/my_env.py:Class"),
        ("phys2d/CartPole-v9", ValueError, "did you mean 'phys2d/CartPole-v1'"),
        ("phys2d/Zzzzzzzzzzzzz", ValueError, "`headrace envs` lists"),
        ("nowhere.py:Env", FileNotFoundError, "no file .*nowhere.py"),
        ("no_such_package.worlds:Env", ImportError, "there is no module 'no_such_package'"),
        (
            "headrace.envs.builtin.catch:Ketch",
            ValueError,
            "'Ketch' in headrace.envs.builtin.catch: use headrace.envs.builtin.catch:Catch$",
        ),
        ("headrace.envs.base:Nothing", ValueError, "no subclass of headrace.KernelEnv or gymnasium.Env"),
        (7, TypeError, "7 does not make environments"),
        (lambda: "a string", TypeError, "gave 'a string' where a gymnasium.Env or a pettingzoo.ParallelEnv was"),
    ],
)
def test_what_cannot_be_found_says_what_could(source, error, says):
    with pytest.raises(error, match=says):
        envs.make(source, 1)


def test_a_file_lists_the_classes_it_has(my_file):
    wanted = f"use {my_file}:Slide or {my_file}:Still"
    with pytest.raises(ValueError, match=f"no environment 'Slyde' in .*: {wanted}"):
        envs.make(f"{my_file}:Slyde", 1)
    with pytest.raises(ValueError, match=f"does not say which class in it to use: {wanted}"):
        envs.make(str(my_file), 1)


def test_errors_in_the_users_file_are_the_users(tmp_path):
    path = tmp_path / "broken_env.py"
    path.write_text("import no_such_dependency\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        envs.make(f"{path}:Any", 1)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):  # the second time as well
        envs.make(f"{path}:Any", 1)


def test_an_instance_is_refused():
    with pytest.raises(TypeError, match=r"function such as `lambda: gymnasium.make\(...\)`"):
        envs.make(gymnasium.make("CartPole-v1"), 1)


@pytest.mark.parametrize("num_envs", [0, -3])
@pytest.mark.parametrize("backend", ["cpu", "inline"])
def test_no_environments_are_refused(num_envs, backend):
    with pytest.raises(ValueError, match=f"num_envs must be at least 1, got {num_envs}"):
        envs.make("CartPole-v1", num_envs, backend=backend)


@pytest.mark.parametrize(
    ("source", "options", "error", "says"),
    [
        ("CartPole-v1", {"backend": "gpu"}, ValueError, "unknown backend 'gpu': use auto, cpu, cuda, torch, inline"),
        ("FrozenLake-v1", {"backend": "cpu"}, ValueError, "cpu backend cannot compile"),
        ("FrozenLake-v1", {"threads": 2}, ValueError, "threads=2 has no meaning"),
        (
            "FrozenLake-v1",
            {"params": {"gravity": 1}},
            ValueError,
            "nor an attribute 'gravity'",
        ),
        ("FrozenLake-v1", {"device": "tpu"}, ValueError, "unknown device 'tpu': use cpu, cuda"),
        ("CartPole-v1", {"backend": "cpu", "device": "cuda"}, ValueError, "cpu backend does not run on device 'cuda'"),
        ("CartPole-v1", {"gravity": 3.0}, TypeError, "takes no gravity: use params, or backend='inline'"),
        ("CartPole-v1", {"wrappers": [lambda env: env]}, TypeError, "takes no wrappers"),
        ("CartPole-v1", {"params": {"gravitas": 3.0}}, ValueError, "no parameter 'gravitas'"),
    ],
)
def test_options_that_do_not_fit_are_refused(source, options, error, says):
    with pytest.raises(error, match=says):
        envs.make(source, 1, **options)


def test_a_missing_extra_gives_the_pip_line(monkeypatch):
    for module in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "Box2D", None)
    with pytest.raises(ImportError, match=r'LunarLander-v3 needs .*: pip install "headrace\[box2d\]"'):
        envs.make("LunarLander-v3", 1)


def test_names_with_a_colon_cannot_be_registered():
    with pytest.raises(ValueError, match="a colon is for"):
        envs.register("mine:Env", CartPole)


# ---- cost


def test_importing_envs_loads_neither_numba_nor_the_worlds():
    program = """
        import sys
        import headrace.envs
        late = ("numba", "headrace.envs.builtin.cartpole", "headrace.envs.compiled.env")
        found = [m for m in sys.modules if m in late]
        print(found)
    """
    found = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_what_mujoco_says_of_a_model_is_said_once_and_not_left_in_a_file(tmp_path, monkeypatch, capfd):
    """MuJoCo prints deprecations for each environment, a hundred for an evaluation, and writes MUJOCO_LOG.TXT."""
    mujoco = pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)
    entry = gymnasium.registry["HalfCheetah-v5"]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        for _ in range(3):
            sources.build("HalfCheetah-v5", entry, {}).close()
    assert not said  # of a model of Gymnasium's, which no user can change
    monkeypatch.setattr(entry, "entry_point", "package.mujoco:Cheetah")
    with (
        warnings.catch_warnings(record=True) as said,
        sources.mujoco_warns_once(entry),
    ):
        warnings.simplefilter("default")
        for _ in range(2):
            mujoco.MjModel.from_xml_string("<mujoco><compiler settotalmass='3'/></mujoco>")
    assert len(said) <= 1 and all("MuJoCo" in str(warning.message) for warning in said)
    assert capfd.readouterr().err == "" and not list(tmp_path.iterdir())
    assert mujoco.get_mju_user_warning() is None
