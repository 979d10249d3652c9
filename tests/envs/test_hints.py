"""Names of no environment: the error says what to write."""

from __future__ import annotations

import shlex
import sys
import textwrap

import gymnasium
import pytest

from headrace import envs
from headrace.cli.main import main
from headrace.core.user_names import Misnamed

FILES = {
    "mine.py": """
        import gymnasium as gym

        class Grid(gym.Env):
            observation_space = gym.spaces.Box(-1, 1, (2,))
            action_space = gym.spaces.Discrete(2)

            def reset(self, seed=None, options=None):
                super().reset(seed=seed)
                return self.observation_space.sample(), {}

            def step(self, action):
                return self.observation_space.sample(), 1.0, False, False, {}

        gym.register("Grid-v3", entry_point=Grid, max_episode_steps=5)
        gym.register(
            max_episode_steps=5,
            id='maze/Tiny-v0',
            entry_point="mine:Grid",
        )
    """,
    "game/__init__.py": """
        from gymnasium.envs.registration import register
        register(id="Game-v0", entry_point="game.inner:Game", max_episode_steps=5)
    """,
    "game/inner.py": "from .base import Game\n",
    "game/base.py": "from mine import Grid as Game\n",
    "lib/rooms.py": 'import gymnasium\ngymnasium.register("Room-v0", "lib.rooms:Room", max_episode_steps=5)\n'
    "from mine import Grid as Room\n",
    "uses.py": 'import gymnasium\nenv = gymnasium.make("Grid-v3")\n',
    "kit/__init__.py": "",
    "kit/made.py": "from mine import Grid\n\n\ndef parallel_env():\n    return Grid()\n",
    "kit/envs.py": 'import gymnasium\ngymnasium.register("Kit-v0", "mine:Grid")\n',
    "broken.py": 'register("Grid-v3"',
    "a_comment.py": '# register("Grid-v3", Grid)',
    "ours.py": 'import headrace as hr\nhr.register("Grid-v3", "mine.py:Grid")',
}


MPE2 = "there is no module 'mpe2': pip install \"headrace[pettingzoo]\""
MADE = ["mine.py:Grid-v3", "mine:Grid-v3", "mine:maze/Tiny-v0", "game:Game-v0", "game.inner:Game"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of a user's files, as the current one."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("Grid-v3", "mine.py:Grid-v3"),
        ("Grid", "mine.py:Grid-v3"),  # as gymnasium.make("Grid") takes the newest version
        ("maze/Tiny-v0", "mine.py:maze/Tiny-v0"),
        ("Game-v0", "game:Game-v0"),
        ("game", "game:Game-v0"),
        ("game/__init__.py:Game-v0", "game:Game-v0"),
        ("game/inner.py:Game", "game.inner:Game"),
        ("Room-v0", "lib.rooms:Room-v0"),
        ("lib/rooms.py:Room-v0", "lib.rooms:Room-v0"),
        ("lib/rooms:Room-v0", "lib/rooms.py:Room-v0"),
        ("kit:Kit-v0", "kit.envs:Kit-v0"),
        ("kit.made:paralel_env", "kit.made:parallel_env"),
        ("mine.py::Grid", "mine.py:Grid"),
        ("mine.Grid", "mine:Grid"),
        ("pettingzoo.mpe.simple_tag_v3:parallel_env", "mpe2.simple_tag_v3:parallel_env"),
        ("simple_adversary_v3", "mpe2.simple_adversary_v3:parallel_env"),
    ],
)
def test_the_command_is_given_with_the_name_that_was_meant(folder, capsys, name, instead):
    assert main(["check", name, "--steps", "7"]) == 2
    said = capsys.readouterr().err
    assert said.endswith(f"\n  headrace check {instead} --steps 7\n"), said


@pytest.mark.parametrize(
    "name", ["mine.py:Grid-v3", "mine:Grid-v3", "mine:maze/Tiny-v0", "game:Game-v0", "game.inner:Game"]
)
def test_what_is_meant_can_be_made(folder, name):
    envs.make(name, 1).close()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "mine.py",
            "mine.py does not say which class in it to use: use mine.py:Grid or mine.py:Grid-v3 or mine.py:maze",
        ),
        ("mine", "use mine.py:Grid or mine.py:Grid-v3"),
        ("mine:Tiny-v0", "no environment 'Tiny-v0' in mine: use mine:Grid or mine:Grid-v3 or mine:maze/Tiny-v0"),
        ("Nothing-v0", "an id that a file or a package of yours registers is written path/to/file.py:ID"),
        ("lib/", "write lib/FILE.py:Class"),
        ("mpe2:simple_tag_v3", "it is a module; name what makes an environment in it: mpe2.simple_tag_v3:parallel_env"),
        ("mpe2.simple_tag_v3", "it is a module; name what makes an environment in it: mpe2.simple_tag_v3:parallel_env"),
    ],
)
def test_where_it_is_not_certain_no_command_is_given(folder, name, says):
    with pytest.raises(Misnamed) as caught:
        envs.make(name, 1)
    assert says in str(caught.value) and not caught.value.instead


def test_a_run_whose_script_registered_its_environment(folder, capsys):
    script = folder / "mine.py"
    options = ["--total-steps", "40", "--num-envs", "2", "--num-steps", "10", "--final-episodes", "0"]
    assert main(["train", "ppo", "mine.py:Grid-v3", *options, "--progress", "none"]) == 0
    config = folder / "runs/ppo/Grid-v3_1/config.toml"
    config.write_text(config.read_text().replace(f"{script}:Grid-v3", "Grid-v3"))
    del gymnasium.registry["Grid-v3"]
    script.write_text(script.read_text() + "# edited: it is imported again")
    capsys.readouterr()
    assert main(["eval", "runs/ppo/Grid-v3_1"]) == 2
    command = capsys.readouterr().err.splitlines()[-1].strip()
    assert command == "headrace eval runs/ppo/Grid-v3_1 --env mine.py:Grid-v3"
    assert main([*shlex.split(command)[1:], "--episodes", "2"]) == 0


@pytest.mark.parametrize(
    ("missing", "name", "says"),
    [
        (
            "mpe2",
            "mpe2.simple_spread_v3:parallel_env",
            MPE2,
        ),
        ("mpe2", "simple_spread_v3", MPE2),
        ("mpe2", "simple_tag_v3", "pip install 'headrace[pettingzoo]', and write mpe2.simple_tag_v3:parallel_env"),
        (
            "pymunk",
            "pettingzoo.butterfly.pistonball_v6:parallel_env",
            'pymunk, which is not installed: pip install "petting',
        ),
        ("minigrid", "MiniGrid-Empty-5x5-v0", "pip install minigrid, and write minigrid:MiniGrid-Empty-5x5-v0"),
        ("minigrid", "BabyAI-GoToObj-v0", "pip install minigrid, and write minigrid:BabyAI-GoToObj-v0"),
        ("jax", "phys2d/CartPole-v1", 'pip install "gymnasium[jax]"'),
    ],
)
def test_a_missing_package_is_named_as_pip_names_it(monkeypatch, missing, name, says):
    find = sys.meta_path[-1].find_spec
    for module in [one for one in sys.modules if one.partition(".")[0] in (missing, "pettingzoo")]:
        monkeypatch.delitem(sys.modules, module)

    def hidden(name, *args):
        return None if name.partition(".")[0] == missing else find(name, *args)

    monkeypatch.setattr(sys.meta_path[-1], "find_spec", hidden)
    with pytest.raises((ImportError, ValueError)) as caught:
        envs.make(name, 1)
    assert says in str(caught.value)


def test_a_package_that_lacks_a_module_is_a_message(folder):
    (folder / "game/needy.py").write_text("import no_such_dependency\n")
    with pytest.raises(
        ImportError, match=r"game.needy needs no_such_dependency, which .*needy.py imports, and that is"
    ):
        envs.make("game.needy:Game", 1)


def test_an_environment_of_the_old_interface_is_refused_with_what_to_do():
    class Old:
        def reset(self): ...
        def step(self, action): ...

    with pytest.raises(TypeError, match=r"was expected: derive a class from gymnasium.Env that calls its reset\(\)"):
        envs.make(Old, 1)


def test_a_missing_extra_in_a_worker_is_a_message_without_its_traceback(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "Box2D", None)

    def build():
        sys.modules["Box2D"] = None
        return envs.factory("LunarLander-v3")()

    with pytest.raises(ImportError, match=r'LunarLander-v3 needs .*: pip install "headrace\[box2d\]"') as caught:
        envs.make(build, 2, workers=1)
    assert not getattr(caught.value, "__notes__", []) and "in a worker process" in str(caught.value.__cause__)
