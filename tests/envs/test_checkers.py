"""Other libraries' checkers on every registered environment in Python: of Gymnasium, Stable-Baselines3, PettingZoo."""

from __future__ import annotations

import os
import subprocess
import sysconfig
import warnings
from pathlib import Path

import pytest
from gymnasium.utils.env_checker import check_env

from headrace import envs
from headrace.envs.compiled.single_env import single
from headrace.envs.registry import names
from headrace.evaluation.recipe import kernel_class

ROOT = Path(__file__).parents[2]
KERNELS = {name: cls for name in names() if (cls := kernel_class(name)) is not None}
ALONE = [name for name, cls in KERNELS.items() if cls.num_agents == 1]
TOGETHER = [name for name in KERNELS if name not in ALONE]
CYCLES = {"Flock": 10, "Tag": 2}  # of steps that take a tenth of a second or more in plain Python; others: 300
OF_TASTE = (  # Gymnasium says as much of its own CartPole and Pendulum
    "A Box observation space m",  # has infinite bounds
    "we recommend using a symmetric and normalized space",
    "environment not having a spec",  # is not registered with Gymnasium, by whose id it would make another
)

SB3 = """
import sys, warnings
sys.path.append(sys.argv.pop(1))  # what this interpreter lacks
from stable_baselines3.common.env_checker import check_env
from headrace.envs.compiled.single_env import single
from headrace.evaluation.recipe import kernel_class
for name in sys.argv[1:]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(single(kernel_class(name)), skip_render_check=True)
    print(name, [str(warning.message) for warning in caught])
"""


def test_every_registered_kernel_is_checked():
    assert len(ALONE) >= 7 and TOGETHER == ["ConnectFourPlayers", "Pursuit", "Flock", "Tag"]


@pytest.mark.parametrize("name", ALONE)
def test_gymnasiums_checker_has_nothing_to_say(name):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(single(KERNELS[name]), skip_render_check=True)
    said = [str(warning.message) for warning in caught]
    assert [text for text in said if not any(words in text for words in OF_TASTE)] == []


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in CYCLES else name for name in TOGETHER]
)
def test_pettingzoos_tests_pass(name):
    pytest.importorskip("pettingzoo")
    from pettingzoo.test import parallel_api_test, parallel_seed_test

    world = envs.factory(name)()
    parallel_api_test(world, num_cycles=CYCLES.get(name, 300))
    parallel_seed_test(envs.factory(name), num_cycles=min(50, CYCLES.get(name, 50)))


@pytest.mark.slow
@pytest.mark.skipif("HEADRACE_TEST_SB3_PYTHON" not in os.environ, reason="needs an interpreter that has SB3")
def test_stable_baselines3s_checker_passes():
    """HEADRACE_TEST_SB3_PYTHON: an interpreter of this version, of an environment with Stable-Baselines3."""
    done = subprocess.run(
        [os.environ["HEADRACE_TEST_SB3_PYTHON"], "-c", SB3, sysconfig.get_path("purelib"), *ALONE],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ALONE
