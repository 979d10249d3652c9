"""`headrace check` and the validation before the first use of CUDA: correct kernels pass, wrong kernels are found.

CUDA kernels run in Numba's simulator, in a separate process.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from helpers import simulator

from headrace.algorithms import ppo
from headrace.checks import parity
from headrace.cli.main import main
from headrace.core import fused
from headrace.data.spaces import Box, Discrete
from headrace.envs.builtin.cartpole import CartPole
from headrace.envs.builtin.grid_world import GridWorld
from headrace.envs.compiled.env import CompiledEnv
from headrace.kernels.language.read import read
from headrace.kernels.targets import deviations
from headrace.kernels.targets.torch.env import TorchEnvs
from headrace.policies.actor_critic import ActorCritic

in_simulator = pytest.mark.skipif(not simulator.SIMULATED, reason="runs in the process that test_simulator starts")
NAMES = ["random numbers", "advantages", "actions", "learning", *(f"{x}, single steps" for x in parity.ENVS)]


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """Few environments and steps, and no stored results of other tests."""
    monkeypatch.setattr(parity, "NUM_ENVS", 4 if simulator.SIMULATED else 64)
    monkeypatch.setattr(parity, "NUM_STEPS", 4 if simulator.SIMULATED else 10)
    monkeypatch.setattr(parity, "ROLLOUT_STEPS", 2 if simulator.SIMULATED else 8)
    monkeypatch.setattr(parity, "FILE", str(tmp_path / "parity.json"))


@pytest.mark.skipif(simulator.SIMULATED, reason="is the simulator")
def test_simulator():
    """The tests marked in_simulator, in a separate process: Numba reads the setting when it is imported."""
    simulator.assert_passes(__file__)


@pytest.mark.skipif(simulator.SIMULATED, reason="is the simulator")
def test_the_cpu_agrees_with_plain_torch(tmp_path, capsys):
    assert main(["check", "--output", str(tmp_path / "check.json")]) == 0
    printed = capsys.readouterr().out
    assert "all agree with plain torch" in printed and printed.count(" yes ") == len(NAMES)
    outcome = json.loads((tmp_path / "check.json").read_text())
    assert outcome["passed"] and outcome["device"] == "cpu" and "torch" in outcome["machine"]
    assert [one["name"] for one in outcome["checks"]] == NAMES
    assert all(one["passed"] and one["worst"] <= one["allowed"] for one in outcome["checks"])


@pytest.mark.skipif(simulator.SIMULATED, reason="is the simulator")
def test_a_wrong_kernel_is_found(monkeypatch, capsys):
    monkeypatch.setattr(parity, "ENVS", ())
    kernels = fused._kernels["returns.gae"]
    before = list(kernels)
    fused.register("returns.gae", lambda *args: True)(lambda reward, *rest: reward * 2)
    try:
        assert main(["check", "--json"]) == 1
    finally:
        kernels[:] = before
    outcome = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in outcome["checks"] if not one["passed"]] == ["advantages"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_what_to_do(capsys):
    assert main(["check", "--device", "cuda"]) == 2
    said = capsys.readouterr().err
    assert "finds no CUDA device: install a CUDA build of torch and a driver, or check --device cpu" in said


class Off(TorchEnvs):
    """CartPole with a wrong reward, observation or flag."""

    column, by = "reward", 1e-3

    def step(self, rollout, t):
        super().step(rollout, t)
        column = getattr(rollout, self.column)
        row = t + (self.column == "observation")
        column[row] = ~column[row] if column.dtype == torch.bool else column[row] + self.by


@pytest.mark.parametrize(
    ("column", "by"), [("reward", 1e-3), ("observation", 1e-3), ("observation", torch.nan), ("truncated", 1)]
)
def test_every_column_is_compared(monkeypatch, column, by):
    ir = read(CartPole)
    good = deviations.deviation(TorchEnvs(ir, 8), TorchEnvs(ir, 8), 5, 0)
    assert good.passed and good.worst == 0
    envs = Off(ir, 8)
    envs.column, envs.by = column, by
    found = deviations.deviation(envs, TorchEnvs(ir, 8), 5, 0)
    assert not found.passed and found.column == column


def test_a_result_is_stored_for_the_machine(monkeypatch, capsys):
    outcomes = iter([deviations.Deviation("weights", 0.5, 1e-4), deviations.Deviation("weights", 0.0, 1e-4)])
    monkeypatch.setattr(parity, "_graphs", lambda device: next(outcomes))
    cpu = torch.device("cpu")
    assert not parity.graphs_trusted(cpu) and not parity.graphs_trusted(cpu)
    assert (
        "an iteration as a CUDA graph differs from plain torch on this machine (weights by 0.5)"
        in capsys.readouterr().err
    )
    monkeypatch.setattr(parity, "facts", lambda device: {"driver": "a newer one"})
    assert parity.graphs_trusted(cpu)
    assert capsys.readouterr().err == ""


def test_an_exception_is_no_result(monkeypatch, capsys):
    """A lack of memory, for example: the kernels are tried again by the next process."""
    outcomes = iter([RuntimeError("CUDA out of memory"), deviations.Deviation("weights", 0.0, 1e-4)])

    def tried(device):
        found = next(outcomes)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(parity, "_graphs", tried)
    assert not parity.graphs_trusted(torch.device("cpu"))
    assert "does not run on this machine (RuntimeError: CUDA out of memory)" in capsys.readouterr().err
    assert parity.graphs_trusted(torch.device("cpu")) and parity.graphs_trusted(torch.device("cpu"))


@in_simulator
@pytest.mark.parametrize("cls", [CartPole, GridWorld])
def test_simulated_kernels_are_trusted(cls, capsys):
    env = CompiledEnv(cls, 4, "cuda")
    assert parity.trusted(env, plain=None) is env
    assert parity.trusted(env, plain=None) is env  # stored
    assert "differs" not in capsys.readouterr().err


@in_simulator
def test_simulated_wrong_kernel_falls_back(monkeypatch, capsys):
    from headrace.kernels.targets.cuda import env as env_cuda

    module = env_cuda.cuda_module
    monkeypatch.setattr(
        env_cuda,
        "cuda_module",
        lambda *args: module(*args).replace("reward[now, i] = step_reward", "reward[now, i] = step_reward + F32(0.5)"),
    )
    env, plain = CompiledEnv(CartPole, 4, "cuda"), SimpleNamespace(backend="torch")
    assert parity.trusted(env, lambda: plain) is plain
    said = capsys.readouterr().err
    assert "the CUDA kernel of CartPole-v1 differs from plain torch on this machine (reward by 0.5)" in said
    assert "it runs as torch instead" in said


@in_simulator
def test_simulated_kernels_of_random_numbers_and_advantages_are_registered_if_they_agree(monkeypatch, capsys):
    from headrace.kernels.targets.cuda import random_and_gae

    offered = []

    def offer(name):
        offered.append(name)
        return SimpleNamespace(offer=lambda trusted: None)

    monkeypatch.setattr(parity, "import_module", offer)
    right = random_and_gae.gae
    monkeypatch.setattr(random_and_gae, "gae", lambda *columns: right(*columns) + 1)
    parity.offer_kernels(torch.device("cpu"))
    assert offered == ["headrace.bindings.actor_critic_cuda"]
    said = capsys.readouterr().err
    assert "random numbers or advantages differs from plain torch on this machine (advantage by" in said
    monkeypatch.setattr(random_and_gae, "gae", right)
    offered.clear()
    monkeypatch.setattr(random_and_gae, "text", lambda: "another kernel")  # the result was that of a text
    parity.offer_kernels(torch.device("cpu"))
    assert offered == ["headrace.bindings.rng_returns_cuda", "headrace.bindings.actor_critic_cuda"]
    assert capsys.readouterr().err == ""


@in_simulator
@pytest.mark.parametrize(
    ("space", "activation"),
    [(Discrete(3, start=1), "elu"), (Box(-2, 4, (2,)), "leaky_relu"), (Box(-2, 4, (1,)), "relu")],
)
def test_simulated_kernels_of_networks_are_trusted_by_head_and_activation(space, activation, monkeypatch, capsys):
    monkeypatch.setattr(parity, "MANY_ENVS", 5)
    policy = ppo.PPO(ActorCritic(Box(-1, 1, (3,)), space, hidden=(5,), activation=activation, seed=1)).policy
    assert parity.networks_trusted(policy)
    from headrace.bindings import actor_critic_cuda

    right = actor_critic_cuda.act
    wrong = lambda *call: right(*call)._replace(value=right(*call).value + 1)  # noqa: E731
    monkeypatch.setattr(actor_critic_cuda, "act", wrong)
    assert parity.networks_trusted(policy)  # stored
    other = ppo.PPO(ActorCritic(Box(-1, 1, (3,)), space, hidden=(6,), activation=activation, seed=1)).policy
    assert not parity.networks_trusted(other)
    said = capsys.readouterr().err
    assert f"a policy with {type(policy.head).__name__} and layers of (6,) differs from plain torch" in said


@pytest.mark.gpu
@pytest.mark.skipif(simulator.SIMULATED or not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_agrees_with_plain_torch(capsys):
    assert main(["check", "--device", "cuda"]) == 0, capsys.readouterr().out
