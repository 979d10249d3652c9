"""The recipes of CONTRIBUTING.md, followed in a copy of the package: what is changed there is all that is needed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.documents import ROOT

ENVIRONMENT = """from typing import NamedTuple

from headrace.data.spaces import Box, Discrete
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import i32, randint

class Coin(KernelEnv):
    \"\"\"Guess a side of a coin that is shown; an episode has one step.\"\"\"

    observation_space = Box(0.0, 1.0, (1,))
    action_space = Discrete(2)
    max_steps = 4

    class State(NamedTuple):
        side: i32

    def reset(s, p, key):
        return Coin.State(randint(key, 0, 2))

    def step(s, p, action, key):
        return s, 1.0 if action == s.side else 0.0, True

    def observe(s, p, out):
        out[0] = s.side
"""
SETTINGS = """
[Coin]
entry = "headrace.envs.builtin.coin:Coin"

[Coin.ppo]
total_steps = 30_000
target_return = 0.99
num_envs = 64
num_steps = 16
"""
ALGORITHM = """from dataclasses import dataclass

from headrace.algorithms.on_policy import OnPolicy, OnPolicyConfig, loss_gradient, policy_gradient_columns


@dataclass(frozen=True)
class PlainConfig(OnPolicyConfig):
    \"\"\"Settings of Plain.\"\"\"

    entropy_coef: float = 0.0  # weight of the entropy
    normalize_advantage: bool = True


def plain_loss(policy, batch, config):
    log_prob, entropy, value = policy.log_prob_entropy_value(batch["inputs"], batch["action"])
    weight, error = batch["weight"], (value - batch["returns"]).square()
    loss = (error - batch["advantage"] * log_prob - config.entropy_coef * entropy) @ weight
    return loss, {"value_loss": error @ weight}


class Plain(OnPolicy[PlainConfig]):
    \"\"\"A step along the gradient of the advantages.\"\"\"

    name = "plain"
    config = PlainConfig()

    def gradient(self, rollout, targets):
        columns = policy_gradient_columns(self.policy, rollout, targets, self.config, self.reduce)
        return loss_gradient(plain_loss, self.policy, columns, self.config, self.reduce)
"""
SOFTSIGN = """@njit(**INLINE)
def softsign(x):
    \"\"\"y = x / (1 + |x|); dy/dx = 1 / (1 + |x|)^2.\"\"\"
    below = splat(_ONE) / (_ONE + select(x > _ZERO, x, _ZERO - x))
    return x * below, below * below


def _rows("""


@pytest.fixture
def package(tmp_path):
    """A folder with a copy of the package."""
    shutil.copytree(ROOT / "headrace", tmp_path / "headrace", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def recipe(title: str) -> set[str]:
    """The files of the package that a recipe names."""
    text = (ROOT / "CONTRIBUTING.md").read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    return set(re.findall(r"`(headrace/[\w/.]*)`", text))


def edit(package: Path, file: str, old: str, new: str) -> None:
    path = package / file
    text = path.read_text()
    assert text.count(old) == 1, (file, old)
    path.write_text(text.replace(old, new))


def run(package: Path, *arguments: str) -> str:
    """What a program prints, with the copy of the package."""
    environ = os.environ | {"PYTHONPATH": str(package), "HEADRACE_COMPILE_AHEAD": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=package, env=environ, text=True, capture_output=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def train(package: Path, *arguments: str) -> str:
    short = ("--log-folder", "runs", "--progress", "plain", "--final-episodes", "0")
    return run(package, "-m", "headrace", "train", *arguments, *short)


def test_a_new_environment(package):
    files = {"headrace/envs/builtin/", "headrace/envs/builtin/settings.toml"}
    assert files < recipe("A new environment")
    (package / "headrace/envs/builtin/coin.py").write_text(ENVIRONMENT)
    with open(package / "headrace/envs/builtin/settings.toml", "a") as settings:
        settings.write(SETTINGS)
    assert "Coin" in run(package, "-m", "headrace", "envs")
    assert "ended by target_return" in train(package, "ppo", "Coin")


def test_a_new_algorithm_and_its_loss(package):
    assert {"headrace/algorithms/", "headrace/algorithms/base.py"} < recipe("A new algorithm")
    (package / "headrace/algorithms/plain.py").write_text(ALGORITHM)
    edit(package, "headrace/algorithms/base.py", '    "a2c": "A2C",\n', '    "a2c": "A2C",\n    "plain": "Plain",\n')
    said = train(package, "plain", "CartPole-v1", "--total-steps", "4000", "--entropy-coef", "0.01")
    assert "trained in" in said and "plain PyTorch" not in said


def test_a_new_activation(package):
    edits = {
        "headrace/kernels/nn/activation_table.py": (
            '    Activation("mish"',
            '    Activation("softsign", functional.softsign, nn.Softsign, {}, False),\n    Activation("mish"',
        ),
        "headrace/kernels/nn/activations.py": ("def _rows(", SOFTSIGN),
        "headrace/deploy/numpy_functions.py": (
            "def mish(x):",
            "def softsign(x):\n    return x / (1 + np.abs(x))\n\n\ndef mish(x):",
        ),
        "headrace/deploy/c_functions.py": ('    "mish":', '    "softsign": "x / (1.0f + fabsf(x))",\n    "mish":'),
        "headrace/deploy/onnx_writer.py": ('{"tanh": "Tanh",', '{"softsign": "Softsign", "tanh": "Tanh",'),
    }
    assert set(edits) == recipe("A new activation")
    for file, (old, new) in edits.items():
        edit(package, file, old, new)
    path = f"pythonpath={package} {ROOT / 'tests'}"  # in place of the package of these tests
    compared = ("-vv", "-p", "no:cacheprovider", "-o", path, ROOT / "tests/kernels/nn/test_mlp.py")
    assert "[softsign]" in run(package, "-m", "pytest", *map(str, compared), "-k", "everywhere or slope")
    said = train(package, "ppo", "CartPole-v1", "--activation", "softsign", "--total-steps", "4000")
    assert "plain PyTorch" not in said
    run_folder = next((package / "runs/ppo").iterdir())
    for form in ("numpy", "c", "onnx"):
        assert "wrote" in run(package, "-m", "headrace", "export", str(run_folder), "--to", form)
