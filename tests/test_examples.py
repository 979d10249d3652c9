"""The examples run, small, as a user would run them: each in a process of its own."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from gymnasium.spaces import Dict, Discrete, MultiDiscrete
from helpers import forked

from headrace.envs import listing

EXAMPLES = Path(__file__).parents[1] / "examples"
LIMITS = {"ppo_single_file.py": 250, "compiled_loss.py": 65}  # whole algorithms
ONE_ROLLOUT = 1  # steps after which training stops: at the end of its first rollout


def example(name: str, folder: Path, *arguments: object) -> str:
    """Run an example in `folder`, and give what it prints."""
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    done = forked.run(command, cwd=folder, capture_output=True, text=True, env=settings)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_ten_lines_train_and_their_run_can_be_loaded(tmp_path):
    assert "over 100 episodes" in example("train_cartpole.py", tmp_path, ONE_ROLLOUT)
    (run,) = (tmp_path / "runs" / "ppo").iterdir()
    printed = example("load_and_act.py", tmp_path, run)
    assert "one observation at a time: return" in printed
    assert "five at once: [" in printed


def test_asynchronous_gradients(tmp_path):
    assert "over 100 episodes" in example("a3c.py", tmp_path, ONE_ROLLOUT)


def test_collecting_while_learning(tmp_path):
    assert "over 20 episodes" in example("overlapped_sac.py", tmp_path, ONE_ROLLOUT)


def test_a_loop_of_ones_own_on_actors(tmp_path):
    assert "over 20 episodes" in example("own_loop.py", tmp_path, 2)


def test_ppo_in_a_single_file(tmp_path):
    printed = example("ppo_single_file.py", tmp_path, "--num-envs", 8, "--total-timesteps", 1024)
    assert "return " in printed and "steps/s" in printed


def test_stable_baselines3s_quickstart_with_one_import_changed(tmp_path):
    assert "returns of 5 episodes: " in example("sb3_quickstart.py", tmp_path, ONE_ROLLOUT)


def test_environments_with_different_parameters(tmp_path):
    assert "over 20 episodes" in example("domain_randomisation.py", tmp_path, ONE_ROLLOUT)


def test_an_environment_written_for_gymnasium(tmp_path):
    assert "over 20 episodes" in example("gymnasium_env.py", tmp_path, ONE_ROLLOUT)


def test_an_environment_of_ones_own_from_the_command_line(tmp_path):
    command = [sys.executable, "-m", "headrace", "train", "ppo", f"{EXAMPLES / 'my_env.py'}:Collect"]
    flags = ["--num-envs", "8", "--num-steps", "16", "--total-steps", "128", "--final-episodes", "2"]
    done = forked.run([*command, *flags], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "over 2 episodes" in done.stdout


def test_an_algorithm_of_ones_own_from_the_command_line(tmp_path):
    name = f"{EXAMPLES / 'vanilla_policy_gradient.py'}:VanillaPolicyGradient"
    flags = ["--num-envs", "8", "--num-steps", "16", "--total-steps", "128", "--final-episodes", "2"]
    command = [sys.executable, "-m", "headrace", "train", name, "CartPole-v1", *flags]
    done = forked.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "over 2 episodes" in done.stdout


def test_a_compiled_loss_in_a_loop_of_ones_own(tmp_path):
    text = (
        (EXAMPLES / "compiled_loss.py").read_text().replace("UPDATES = 32, 64, 4, 4, 30", "UPDATES = 32, 64, 4, 4, 2")
    )
    (tmp_path / "short.py").write_text(text)
    done = forked.run([sys.executable, "short.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "update 1:" in done.stdout and "plain PyTorch" not in done.stderr, done.stderr


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short(path):
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    assert len(lines) <= LIMITS.get(path.name, 50), f"{len(lines)} lines that are not blank"


def python_block(document: str, begins: str) -> str:
    """The Python of a document that begins so."""
    (block,) = [
        rest.split("```")[0]
        for rest in (EXAMPLES.parent / document).read_text().split("```python\n")[1:]
        if rest.startswith(begins)
    ]
    return block


def test_the_environment_of_the_documentation(tmp_path):
    for document, file in {"docs/own-environments.md": "chase.py", "docs/multi-agent.md": "tag.py"}.items():
        (tmp_path / file).write_text(python_block(document, "from typing import NamedTuple"))
    program = """
import numpy as np
from gymnasium.utils.env_checker import check_env
import headrace as hr
from headrace.envs.compiled.single_env import single
from chase import Chase
check_env(single(Chase), skip_render_check=True)
hr.make(Chase, 8, backend="torch")
assert hr.make("tag.py:Tag", 4, backend="torch").num_envs == 8
envs = hr.make("chase.py:Chase", 8, params={"prey_speed": np.linspace(0.2, 0.9, 8), "reach": 0.4})
print(hr.train("ppo", envs, num_steps=16, total_steps=128))
"""
    (tmp_path / "program.py").write_text(program)
    done = forked.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "ended by total_steps" in done.stdout


def test_the_documents_list_the_environments():
    page = (EXAMPLES.parent / "docs" / "builtin.md").read_text()
    for known in listing():
        seen, actions = known.observation_space, known.action_space
        size = " x ".join(map(str, (seen["observation"] if isinstance(seen, Dict) else seen).shape))
        match actions:
            case Discrete():
                count = str(actions.n)
            case MultiDiscrete():
                count = " x ".join(map(str, actions.nvec))
            case _:
                count = f"{actions.shape[0]}, continuous"
        assert re.search(rf"\| {known.name} \| {size}(, [^|]*)? \| {count} \|", page), known.name
