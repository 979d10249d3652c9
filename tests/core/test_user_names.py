"""Files and modules of one name in several folders: each name gives its own file's classes, or an error."""

from __future__ import annotations

import sys
import textwrap

import pytest

from headrace import envs
from headrace.core.user_names import import_user_module, member
from headrace.envs import sources

ENV = """
    import gymnasium as gym

    class Grid(gym.Env):
        observation_space = gym.spaces.Box(-1, 1, (2,))
        action_space = gym.spaces.Discrete({actions})

        def reset(self, seed=None, options=None):
            super().reset(seed=seed)
            return self.observation_space.sample(), {{}}

        def step(self, action):
            return self.observation_space.sample(), 1.0, False, False, {{}}

    gym.register("Same-v0", "mine:Grid", max_episode_steps=5)
"""


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Folders a and b with the same names of files, the second as the current one."""
    for folder, actions in (("a", 2), ("b", 3)):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "mine.py", ENV.format(actions=actions))
        write(tmp_path / folder / "tools.py", f"NAME = {folder!r}")
        write(tmp_path / folder / "needy.py", f"from tools import NAME\ndef name_in_{folder}(): return NAME")
        write(tmp_path / folder / "far.py", "def late():\n    import near\n    return near.NAME")
        write(tmp_path / folder / "near.py", "import json\nfrom tools import NAME")
    monkeypatch.chdir(tmp_path / "b")
    return tmp_path


def write(path, text):
    path.write_text(textwrap.dedent(text))


def actions(name):
    env = envs.make(name, 1, backend="inline")
    env.close()
    return env.action_space.n


@pytest.mark.parametrize("order", ["ab", "ba"])
@pytest.mark.parametrize("name", ["Grid", "Same-v0"])
def test_each_file_gives_its_own(folders, order, name):
    for _ in range(2):
        for folder in order:
            assert actions(f"{folders}/{folder}/mine.py:{name}") == {"a": 2, "b": 3}[folder]


def test_a_modules_name_is_of_the_current_folder_or_refused(folders):
    assert actions(f"{folders}/a/mine.py:Grid") == 2
    with pytest.raises(ImportError, match=rf"mine is the module in {folders}/a, and another is in the current folder"):
        envs.make("mine:Grid", 1)
    assert actions("mine.py:Grid") == 3, "as the message says"
    assert member("needy:name_in_b", "a function")() == "b", "though the folder a is where modules are looked for"


@pytest.mark.parametrize("file", ["needy.py", "near.py", "far.py"])
def test_a_neighbour_of_the_same_name_is_refused(folders, file):
    assert import_user_module(f"{folders}/a/needy.py").name_in_a() == "a"
    with pytest.raises(ImportError, match=rf"b/{file} imports tools, .* tools is the one in {folders}/a: rename"):
        import_user_module(f"{folders}/b/{file}")
    del sys.modules["tools"]
    assert import_user_module(f"{folders}/b/needy.py").name_in_b() == "b", "its own folder comes first"


def test_a_neighbour_of_the_same_name_that_is_not_imported_is_none_of_ours(folders):
    assert import_user_module(f"{folders}/a/needy.py").name_in_a() == "a"
    assert actions(f"{folders}/b/mine.py:Grid") == 3


def test_a_file_does_not_take_the_name_of_a_module_that_nobody_has_imported_yet(folders):
    sys.modules.pop("this", None)
    write(folders / "a" / "this.py", "def mine(): return 1")
    module = import_user_module(f"{folders}/a/this.py")
    assert module.mine() == 1 and module.__name__ != "this" and "this" not in sys.modules


def test_an_edited_file_keeps_its_name(folders):
    first = import_user_module("tools.py")
    write(folders / "b" / "tools.py", "NAME = 'edited: longer'")
    second = import_user_module("tools.py")
    assert (first.NAME, second.NAME) == ("b", "edited: longer") and first.__name__ == second.__name__ == "tools"


def test_find_leaves_gymnasiums_registry_as_it_is(folders):
    found = [sources.find(f"{folders}/{folder}/mine.py:Same-v0") for folder in "ab"]
    assert [spec.id for spec in found] == ["Same-v0", "Same-v0"]
    import gymnasium

    assert gymnasium.registry["Same-v0"].entry_point == "mine:Grid"
