"""Acting and PPO's learning by CUDA kernels: in Numba's simulator, as PTX, and on a GPU, against plain torch."""

from __future__ import annotations

import re
from copy import deepcopy

import pytest
import torch
from helpers import simulator
from helpers.ptx import assert_lean, to_ptx

from headrace.algorithms import ppo
from headrace.algorithms.on_policy import Targets
from headrace.bindings import actor_critic_cuda
from headrace.core import fused
from headrace.data.rollout import Column, Rollout
from headrace.data.spaces import Box, Discrete, MultiDiscrete, action_column, env_columns
from headrace.kernels.cuda import actor_critic_text, launches
from headrace.kernels.cuda.layers_text import Tile
from headrace.policies.actor_critic import ActorCritic

in_simulator = pytest.mark.skipif(not simulator.SIMULATED, reason="runs in the simulator, started by test_simulator")
on_gpu = pytest.mark.skipif(simulator.SIMULATED or not torch.cuda.is_available(), reason="needs a GPU")
SEEN, CHOICES, TORQUES = Box(-1, 1, (3,)), Discrete(3, start=2), Box(-2, 4, (3,))
CASES = {
    "categorical": (CHOICES, {}),
    "gaussian": (TORQUES, {"activation": "relu"}),
    "normalized": (CHOICES, {"activation": "elu", "normalize_observation": True, "normalize_return": True}),
    "deep": (TORQUES, {"hidden": (17, 16, 4), "activation": "leaky_relu", "normalize_observation": True}),
}
SETTINGS = {
    "defaults": {"epochs": 1},
    "all": {"value_clip": 0.1, "entropy_coef": 0.05, "normalize_advantage": False, "max_grad_norm": 0.02},
    "stopped": {"target_kl": 1e-5, "epochs": 2},
}


@pytest.mark.skipif(simulator.SIMULATED, reason="is the simulator")
def test_simulator():
    """The tests marked in_simulator, in a process of their own: Numba reads the setting when it is imported."""
    simulator.assert_passes(__file__)


def policy_of(case: str, device: str = "cpu", hidden: tuple[int, ...] = (5, 18)) -> ActorCritic:
    """Make a policy with statistics, and with biases that are not 0."""
    space, settings = CASES[case]
    policy = ActorCritic(SEEN, space, **{"hidden": hidden, "seed": 3} | settings)
    source = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=source)
        if policy.encoder.normalizer is not None:
            policy.encoder.normalizer.center.copy_(torch.randn(3, generator=source))
            policy.encoder.normalizer.scale.fill_(4.0)
            policy.encoder.normalizer.limit = 2.0
        if policy.return_normalizer is not None:
            policy.return_normalizer.center.fill_(0.3)
            policy.return_normalizer.scale.fill_(1.7)
    return policy.to(device)


def collected(case: str, steps: int, envs: int) -> tuple[Rollout, Targets]:
    space, _ = CASES[case]
    own = {"action": action_column(space), "log_prob": Column(), "value": Column(bootstrap=True)}
    rollout, source = Rollout(steps, envs, env_columns(SEEN) | own), torch.Generator().manual_seed(1)
    rollout.observation.copy_(torch.randn(rollout.observation.shape, generator=source))
    rollout.valid.copy_(torch.rand(rollout.valid.shape, generator=source) > 0.15)
    policy = policy_of(case)
    with torch.no_grad(), fused.plain_only():
        for t in range(steps):
            output = policy.act(rollout.observation[t], None, torch.rand(envs, policy.num_draws, generator=source))
            rollout.action[t].copy_(output.action)
            rollout.log_prob[t].copy_(output.log_prob + 0.3 * torch.randn(envs, generator=source))
            rollout.value[t].copy_(output.value + 0.1 * torch.randn(envs, generator=source))
    advantage, noise = (torch.randn(steps, envs, generator=source) for _ in range(2))
    return rollout, Targets(advantage, rollout.value[:-1] + noise, rollout.valid[:-1])


def assert_acting_agrees(case: str, device: str, rows: int) -> None:
    policy, source = policy_of(case), torch.Generator().manual_seed(2)
    there = ppo.PPO(deepcopy(policy).to(device)).policy
    seen = torch.randn(rows, 3, generator=source)
    for random in (torch.rand(rows, policy.num_draws, generator=source), None):
        with torch.no_grad(), fused.plain_only():
            expected = policy.act(seen, None, random)
        drawn = None if random is None else random.to(device)
        found = actor_critic_cuda.act(there, seen.to(device), None, drawn)
        assert found.action.dtype == expected.action.dtype and found.action.shape == expected.action.shape
        for name in ("action", "log_prob", "value"):
            torch.testing.assert_close(getattr(found, name).cpu(), getattr(expected, name), rtol=1e-4, atol=1e-5)
        values = actor_critic_cuda.value(there, seen.to(device))
        assert torch.equal(values, found.value)


def assert_learning_agrees(case: str, settings: str, device: str, steps: int, envs: int, size: int) -> None:
    config = ppo.PPOConfig(num_steps=steps, minibatch_size=size, **{"epochs": 2} | SETTINGS[settings])
    rollout, targets = collected(case, steps, envs)
    ours, theirs = (ppo.PPO(policy_of(case), config) for _ in range(2))
    if device != "cpu":
        ours = ppo.PPO(policy_of(case).to(device), config)
    source = torch.Generator().manual_seed(4)
    order = torch.stack([torch.randperm(steps * envs, generator=source) for _ in range(config.epochs)])
    with fused.plain_only():
        expected = ppo.learn(theirs.policy, theirs.optimizer, rollout, targets, order, config)
    there = Targets(*(column.to(device) for column in targets[:3]))
    arguments = (ours.policy, ours.optimizer, rollout.to(device), there, order.to(device), config)
    assert actor_critic_cuda.serves_learning(*arguments) is (device == "cuda")
    assert actor_critic_cuda._fit(ours.policy, *arguments[2:5])
    found = actor_critic_cuda.learn(*arguments)
    for name in ("flat", "mean", "square", "steps", "gradient"):
        mine, other = getattr(ours.optimizer, name).cpu(), getattr(theirs.optimizer, name)
        torch.testing.assert_close(mine, other, rtol=2e-3, atol=2e-5, msg=lambda text, name=name: f"{name}: {text}")
    if settings == "stopped":  # plain torch stops on the CPU, and measures no more minibatches
        assert ours.optimizer.steps.item() < config.epochs * round(steps * envs / size)
    else:
        assert {*found} == {*expected}
        for name, value in expected.items():
            torch.testing.assert_close(found[name].cpu(), value, rtol=2e-3, atol=2e-5)


@in_simulator
@pytest.mark.parametrize(("case", "tile"), [("normalized", (4, 2, 2)), ("deep", (4, 4, 1))])
def test_simulated_acting_agrees(case, tile, monkeypatch):
    monkeypatch.setattr(actor_critic_text, "SIMULATED", Tile(*tile))
    assert_acting_agrees(case, "cpu", 9)


@in_simulator
@pytest.mark.parametrize(
    ("case", "settings", "tile"),
    [("normalized", "all", (4, 4, 1)), ("deep", "defaults", (4, 2, 2)), ("categorical", "stopped", (4, 2, 2))],
)
def test_simulated_learning_agrees(case, settings, tile, monkeypatch):
    monkeypatch.setattr(actor_critic_text, "SIMULATED", Tile(*tile))
    assert_learning_agrees(case, settings, "cpu", 3, 6, 9)


@pytest.mark.skipif(simulator.SIMULATED, reason="the simulator makes no PTX")
@pytest.mark.parametrize(
    ("rows", "hidden", "tile"), [(256, 64, (32, 16, 2)), (65_536, 64, (32, 8, 2)), (256, 128, (32, 16, 1))]
)
def test_ptx_of_networks_has_no_doubles_and_spills_nothing(monkeypatch, tmp_path, rows, hidden, tile):
    pytest.importorskip("numba_cuda")
    from numba import types

    architecture = actor_critic_cuda.known(policy_of("gaussian", hidden=(hidden, hidden))).architecture
    chosen = actor_critic_text.tile_of(architecture, rows, 132)
    assert chosen == tile
    row, matrix, draws = types.float32[::1], types.float32[:, ::1], types.float32[:, :, ::1]
    number, count, flags = types.float32, types.int64, types.boolean[::1]
    signatures = {
        "act": (
            *(row, matrix, count, count, row, row, number, matrix, draws, count, types.boolean),
            *(matrix, row, row, row, row, count, count, count),
        ),
        "gradient": (
            *(row, matrix, matrix, types.int64[::1], count, count, count, matrix, row, row, number, matrix),
            *(matrix, row, row, row, row, flags, row, row, row, *[number] * 4),
        ),
    }
    for kernel, signature in signatures.items():
        module = launches._actor_critic(architecture, chosen, kernel)
        said = assert_lean(to_ptx(monkeypatch, getattr(module, kernel).py_func, signature), tmp_path)
        registers = re.search(r"Used (\d+) registers", said)
        assert registers is None or int(registers[1]) * chosen.threads <= 65_536


@pytest.mark.skipif(simulator.SIMULATED, reason="the simulator makes no PTX")
@pytest.mark.parametrize("kernel", ["add_up", "step"])
def test_ptx_of_adam_has_no_doubles_and_spills_nothing(monkeypatch, tmp_path, kernel):
    pytest.importorskip("numba_cuda")
    from numba import types

    row, matrix, number = types.float32[::1], types.float32[:, ::1], types.float32
    signature = {
        "add_up": (matrix, row, row, matrix, matrix, types.int64, row, row, number),
        "step": (*[row] * 5, number, row, number, number, number, row, row),
    }[kernel]
    assert_lean(to_ptx(monkeypatch, getattr(launches._adam(), kernel).py_func, signature), tmp_path)


@pytest.mark.parametrize(
    ("space", "settings", "reason"),
    [
        (TORQUES, {"hidden": (256, 256)}, r"hidden layers of \(256, 256\) do not fit"),
        (TORQUES, {"shared": True}, "without shared layers"),
        (CHOICES, {"layer_norm": True}, "layer normalisation"),
        (TORQUES, {"distribution": "squashed"}, "not for GaussianHead"),
        (MultiDiscrete([2, 3]), {}, "not for MultiCategoricalHead"),
        (CHOICES, {"activation": "gelu"}, "not for gelu"),
        (CHOICES, {"hidden": ()}, "hidden layers of"),
    ],
)
def test_policies_that_the_kernels_do_not_know(space, settings, reason):
    found = actor_critic_cuda.known(ActorCritic(SEEN, space, **settings))
    assert found.architecture is None or "fit" in reason
    assert re.search(reason, found.reason)


def test_known_policies_follow_what_is_replaced():
    policy = policy_of("categorical")
    assert actor_critic_cuda.known(policy).reason is None
    policy.actor.layers[0].register_forward_hook(lambda *call: None)
    assert actor_critic_cuda.known(policy).reason is not None
    apart = deepcopy(policy_of("categorical"))
    for parameter in apart.parameters():  # as .to() of another device leaves them: not in one buffer
        parameter.data = parameter.data.clone()
    assert actor_critic_cuda.known(apart) == (None, None)


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("case", CASES)
def test_gpu_acting_agrees(case):
    assert_acting_agrees(case, "cuda", 1000)


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("case", CASES)
def test_gpu_learning_agrees(case, settings):
    assert_learning_agrees(case, settings, "cuda", 8, 500, 1990)
