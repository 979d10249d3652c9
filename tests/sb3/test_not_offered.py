"""Names of Stable-Baselines3 that are not here: the ImportError says what to import or to do instead."""

from __future__ import annotations

import importlib

import pytest

from headrace import sb3
from headrace.sb3.members import OF_PACKAGE


@pytest.mark.parametrize("name", OF_PACKAGE)
def test_each_name_says_what_serves_instead(name):
    with pytest.raises(ImportError, match=f"headrace.sb3 has no {name}: .{{15,}}") as error:
        exec(f"from headrace.sb3 import {name}")
    assert error.value.name == name and "{}" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "instead"),
    {
        "VecNormalize": r"from stable_baselines3\.common\.vec_env import VecNormalize.*normalize_observation=True",
        "MaskablePPO": "action_mask",
        "EvalCallback": r"from stable_baselines3\.common\.callbacks import EvalCallback",
        "CnnPolicy": 'in quotes: "CnnPolicy"',
    }.items(),
)
def test_the_remedy_is_that_of_the_name(name, instead):
    with pytest.raises(ImportError, match=instead):
        getattr(sb3, name)


def test_other_names_are_missing_as_in_any_module():
    assert not hasattr(sb3, "Nothing") and sb3.PPO.__name__ == "PPO"
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        exec("from headrace.sb3 import Nothing")


def test_no_name_that_there_is_is_said_to_be_missing():
    assert not OF_PACKAGE.keys() & vars(sb3).keys()


@pytest.mark.parametrize("module", ["headrace.sb3.common", "headrace.sb3.common.vec_env"])
def test_replaced_text_of_imports_is_told_what_to_keep(module):
    with pytest.raises(ImportError, match=r"keep `from stable_baselines3\.common"):
        importlib.import_module(module)
