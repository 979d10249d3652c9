"""The examples run, small, as a user would run them: each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
ONE_ROLLOUT = 1  # steps after which training stops: at the end of its first rollout


def example(name: str, folder: Path, *arguments: object) -> str:
    """Run an example in `folder`, and give what it prints."""
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, env=settings)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_ten_lines_train_and_their_run_can_be_loaded(tmp_path):
    assert "over 100 episodes" in example("train_cartpole.py", tmp_path, ONE_ROLLOUT)
    (run,) = (tmp_path / "runs" / "ppo").iterdir()
    printed = example("load_and_act.py", tmp_path, run)
    assert "one observation at a time: return" in printed
    assert "five at once: [" in printed


def test_worlds_with_different_parameters(tmp_path):
    assert "over 20 episodes" in example("domain_randomisation.py", tmp_path, ONE_ROLLOUT)


def test_an_environment_written_for_gymnasium(tmp_path):
    assert "over 20 episodes" in example("gymnasium_env.py", tmp_path, ONE_ROLLOUT)


def test_an_environment_of_ones_own_from_the_command_line(tmp_path):
    command = [sys.executable, "-m", "headrace", "train", "ppo", f"{EXAMPLES / 'my_env.py'}:Collect"]
    flags = ["--num-envs", "8", "--num-steps", "16", "--total-steps", "128", "--final-episodes", "2"]
    done = subprocess.run([*command, *flags], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "over 2 episodes" in done.stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short(path):
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    assert len(lines) <= 50, f"{len(lines)} lines that are not blank"


def test_the_environment_of_the_documentation(tmp_path):
    text = (EXAMPLES.parent / "docs" / "environments.md").read_text()
    source = text.split("```python\n")[1].split("```")[0]
    (tmp_path / "pursuit.py").write_text(source)
    env_checker = "from gymnasium.utils.env_checker import check_env; check_env(single(Pursuit))"
    program = f"""
import numpy as np
import headrace as hr
from headrace.envs.single import single
from pursuit import Pursuit
{env_checker}
hr.make(Pursuit, 8, backend="torch")
worlds = hr.make("pursuit.py:Pursuit", 8, params={{"prey_speed": np.linspace(0.2, 0.9, 8), "reach": 0.4}})
print(hr.train("ppo", worlds, num_steps=16, total_steps=128))
"""
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "ended by total_steps" in done.stdout
