"""Compare the kernels and graphs of a device with plain torch on the CPU. Each check takes about a second.

`headrace check` prints the results. Kernels are also validated before their first use on a GPU; the result is stored
for this GPU, driver and set of versions.
"""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from headrace.algorithms import ppo
from headrace.algorithms.on_policy import Targets
from headrace.core import fused, rng
from headrace.core.packages import installed
from headrace.core.returns import gae
from headrace.core.terminal import tell
from headrace.data.rollout import Column, Rollout
from headrace.data.spaces import Box, Discrete, action_column, env_columns
from headrace.envs import make
from headrace.envs.base import Env
from headrace.envs.compiled.env import CompiledEnv
from headrace.kernels.language.errors import EnvError
from headrace.kernels.runtime.cache_folder import folder, json_table
from headrace.kernels.targets.deviations import Deviation, deviation
from headrace.parallel.collector import InlineCollector
from headrace.parallel.cuda.cuda_graphs import GraphedIteration
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.base import PolicyOutput

ENVS = ("CartPole-v1", "Pendulum-v1", "MountainCar-v0")  # environments that also run as plain torch
NUM_ENVS, NUM_STEPS = 256, 40
ROLLOUT_STEPS = 8  # of rollouts for acting and learning
MANY_ENVS = 16_384  # kernels of networks divide this many rows in another way than a few
OBSERVATION, ACTION = Box(-1, 1, (5,)), Discrete(3)
FILE = "parity.json"


class Check(NamedTuple):
    """The result of one comparison."""

    name: str
    passed: bool
    worst: float | None  # largest difference, relative to max(1, |x|); None if the comparison failed
    allowed: float | None
    seconds: float
    note: str  # the name of what differs most, or why the comparison failed


def check(device: torch.device) -> list[Check]:
    """Run every comparison that applies to a device, with the registered kernels."""
    comparisons: dict[str, Callable[[], Deviation]] = {
        "random numbers": partial(_random_numbers, device),
        "advantages": partial(_advantages, device),
        "actions": partial(_actions, device),
        "learning": partial(_learning, device),
    }
    comparisons |= {f"{name}, single steps": partial(_steps, name, device) for name in ENVS}
    if device.type == "cuda":
        comparisons["iterations as graphs"] = partial(_graphs, device)
    return [_run(name, comparison) for name, comparison in comparisons.items()]


def _run(name: str, comparison: Callable[[], Deviation]) -> Check:
    """Run a comparison. If it raises an exception it has not passed."""
    began = perf_counter()
    try:
        with torch.enable_grad():  # the first call of a kernel may be one that acts, without gradients
            found = comparison()
    except Exception as error:
        return Check(name, False, None, None, perf_counter() - began, f"{type(error).__name__}: {error}")
    return Check(name, found.passed, found.worst, found.allowed, perf_counter() - began, found.column)


def trusted(env: Env, plain: Callable[[], Env]) -> Env:
    """Return a CompiledEnv if its CUDA kernel agrees with plain torch on this machine; otherwise plain(), with a
    message on stderr."""
    assert isinstance(env, CompiledEnv)
    name = f"{env.name} {_digest(env.ir.code)}"
    what = f"the CUDA kernel of {env.name}"
    return env if _agrees(env.device, name, partial(_env_steps, env), what, "it runs as torch instead") else plain()


def offer_kernels(device: torch.device) -> None:
    """Register CUDA kernels for random numbers, advantages, acting and learning, if numba-cuda is installed and they
    agree with plain torch on this machine. Prints a message on stderr if they do not."""
    if find_spec("numba_cuda") is None:
        return
    what, instead = "a CUDA kernel of random numbers or advantages", "plain torch runs instead"
    from headrace.kernels.targets.cuda import random_and_gae

    name = f"random numbers and advantages {_digest(random_and_gae.text())}"
    if _agrees(device, name, partial(_numbers, device), what, instead):
        import_module("headrace.bindings.rng_returns_cuda")
    import_module("headrace.bindings.actor_critic_cuda").offer(networks_trusted)


def networks_trusted(policy: ActorCritic) -> bool:
    """Tell whether the CUDA kernels for a policy's head, activation and sizes agree with plain torch on this machine.
    Prints a message on stderr if they do not."""
    from headrace.bindings import actor_critic_cuda

    name = f"networks {_digest(actor_critic_cuda.text(policy))}"
    what = f"the CUDA kernel of a policy with {type(policy.head).__name__} and layers of {policy.hidden}"
    return _agrees(policy.device, name, partial(_networks, policy), what, "plain torch runs instead")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def graphs_trusted(device: torch.device) -> bool:
    """Tell whether iterations replayed from a CUDA graph agree with plain ones on this machine. Prints a message on
    stderr if they do not."""
    return _agrees(
        device, "graphs", partial(_graphs, device), "an iteration as a CUDA graph", "iterations run step by step"
    )


def _agrees(device: torch.device, name: str, comparison: Callable[[], Deviation], what: str, instead: str) -> bool:
    """Tell whether a comparison passes, by the result stored for this machine, or else by running it.

    Only results are stored. If an exception ends a comparison, perhaps for lack of memory, the next process tries it
    again.
    """
    with json_table(folder() / FILE) as stored:
        results = stored.setdefault(json.dumps(facts(device)), {})
        failure = results.get(name)
        if failure is None:
            found = _run(name, comparison)
            failure = "" if found.passed else _failure(found)
            if found.worst is not None:
                results[name] = failure
    if failure:
        tell(f"{what} {failure}: {instead}. For details run `headrace check --device cuda`")
    return not failure


def _failure(found: Check) -> str:
    if found.worst is None:
        return f"does not run on this machine ({found.note})"
    return f"differs from plain torch on this machine ({found.note} by {found.worst:.2g})"


def facts(device: torch.device) -> dict[str, str]:
    """Facts that a result may depend on: device, driver, versions."""
    found = {"device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU ({platform.machine()})"}
    if device.type == "cuda":
        found["driver"] = _driver()
    found["python"] = platform.python_version()
    for package in ("headrace", "torch", "numba", "numba-cuda"):
        found[package] = installed(package, otherwise="none")
    return found


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


def _numbers(device: torch.device) -> Deviation:
    from headrace.kernels.targets.cuda import random_and_gae

    for found in (_random_numbers(device, random_and_gae.uniform), _scattered(device, random_and_gae.scattered)):
        if not found.passed:
            return found
    return _advantages(device, random_and_gae.gae)


def _random_numbers(device: torch.device, fused_uniform: Callable[..., Tensor] = rng.uniform) -> Deviation:
    block = (7, rng.Purpose.ACTION, 2**32 - 3, 6, 100, 5)
    return _unequal("draws", fused_uniform(*block, device), rng.uniform.plain(*block, "cpu"))  # type: ignore[attr-defined]


def _scattered(device: torch.device, kernel: Callable[..., Tensor]) -> Deviation:
    block = (7, rng.Purpose.SHUFFLE, 2**32 - 3, 3, 11)
    return _unequal("permutations", kernel(*block, device), rng.scattered.plain(*block, "cpu"))  # type: ignore[attr-defined]


def _advantages(device: torch.device, fused_gae: Callable[..., Tensor] = gae) -> Deviation:
    source = torch.Generator().manual_seed(0)
    columns = [torch.randn(32, 100, generator=source) for _ in range(3)]
    columns += [torch.rand(32, 100, generator=source) < 0.05 for _ in range(2)]
    found = fused_gae(*(x.to(device) for x in columns), 0.99, 0.95)
    return _difference("advantage", found, gae.plain(*columns, 0.99, 0.95), 1e-5)  # type: ignore[attr-defined]


def _networks(policy: ActorCritic) -> Deviation:
    """Compare the kernels for a policy, with tiles for few and for many rows."""
    from headrace.bindings import actor_critic_cuda

    device, plain = policy.device, deepcopy(policy).cpu().requires_grad_()
    found = []
    for num_envs in (NUM_ENVS, MANY_ENVS):
        found.append(_actions(device, actor_critic_cuda.act, plain, num_envs))
        found.append(_learning(device, actor_critic_cuda.learn, plain, num_envs))
    return max(found, key=lambda one: one.worst / one.allowed)


def _actions(
    device: torch.device,
    act: Callable[..., PolicyOutput] = ActorCritic.act,
    plain: ActorCritic | None = None,
    num_envs: int | None = None,
) -> Deviation:
    policy, rollout = _collected(plain, num_envs)
    draws = (rollout.num_envs, policy.num_draws)
    random = rng.uniform.plain(3, rng.Purpose.ACTION, 0, 1, *draws, "cpu")[0]  # type: ignore[attr-defined]
    observation = rollout.observation[0]
    on_device = ppo.PPO(deepcopy(policy).to(device)).policy  # with all weights in one buffer, as kernels require
    with torch.no_grad():
        with fused.plain_only():
            expected = policy.act(observation, None, random)
        found = act(on_device, observation.to(device), None, random.to(device))
    if expected.action.is_floating_point():
        same = torch.ones(len(expected.action), dtype=torch.bool)
        action = _difference("action", found.action, expected.action, 1e-4)
        if not action.passed:
            return action
    else:
        same = found.action.cpu() == expected.action  # rounding may decide between two actions
    if same.float().mean() < 0.99:
        return _unequal("action", found.action, expected.action)
    log_prob = _difference("log_prob", found.log_prob.cpu()[same], expected.log_prob[same], 1e-4)
    return max(log_prob, _difference("value", found.value, expected.value, 1e-4), key=lambda one: one.worst)


def _learning(
    device: torch.device,
    learn: Callable[..., dict[str, Tensor]] = ppo.learn,
    plain: ActorCritic | None = None,
    num_envs: int | None = None,
) -> Deviation:
    policy, rollout = _collected(plain, num_envs)
    source = torch.Generator().manual_seed(1)
    made_up = (torch.randn(rollout.reward.shape, generator=source) for _ in range(2))
    targets = Targets(next(made_up), next(made_up), rollout.valid[:-1])
    config = ppo.PPOConfig(num_steps=rollout.num_steps, epochs=2, minibatch_size=2 * rollout.num_envs)
    order = torch.stack([torch.randperm(rollout.reward.numel(), generator=source) for _ in range(2)])
    ours = ppo.PPO(deepcopy(policy).to(device), config)
    theirs = ppo.PPO(policy, config)
    with fused.plain_only():
        ppo.learn(policy, theirs.optimizer, rollout, targets, order, config)
    moved = Targets(*(column.to(device) for column in targets[:3]))
    learn(ours.policy, ours.optimizer, rollout.to(device), moved, order.to(device), config)
    return _difference("weights", ours.optimizer.flat, theirs.optimizer.flat, 1e-4)


def _steps(name: str, device: torch.device) -> Deviation:
    env = make(name, NUM_ENVS, backend=device.type, device=device)
    assert isinstance(env, CompiledEnv)
    return _env_steps(env)


def _env_steps(env: CompiledEnv) -> Deviation:
    """Compare an environment's kernel with plain torch on the CPU, or with the CPU's kernel if it branches."""
    envs = type(env.target)(env.ir, NUM_ENVS, device=env.device)  # type: ignore[call-arg]
    try:
        reference = CompiledEnv(env.ir.cls, NUM_ENVS, "torch")
    except EnvError:
        reference = CompiledEnv(env.ir.cls, NUM_ENVS, "cpu", threads=1)
    return deviation(envs, reference.target, NUM_STEPS, seed=1)


def _graphs(device: torch.device) -> Deviation:
    """Compare three iterations replayed from a graph with the same three run step by step."""
    results = []
    for graph in (True, False):
        env = make("CartPole-v1", NUM_ENVS, backend="torch", device=device)
        config = ppo.PPOConfig(num_steps=8, epochs=2, minibatch_size=512, schedule="linear")
        learner = ppo.PPO.build(config, env.observation_space, env.action_space, 0, device)
        collector = InlineCollector(env, learner.policy, config.num_steps, learner.columns(), 0)
        graphed = GraphedIteration(collector, learner)
        for k in range(4):
            if not graph or graphed.iterate(k / 4) is None:
                learner.update(collector.collect(), k / 4)
        if graphed.refused:
            raise RuntimeError(graphed.refused)
        results.append(learner.optimizer.flat)
    return _difference("weights", results[0], results[1].cpu(), 1e-4)


def _collected(policy: ActorCritic | None = None, num_envs: int | None = None) -> tuple[ActorCritic, Rollout]:
    """Make a copy of a policy, by default one with three choices, and a rollout of random data, on the CPU."""
    policy = ActorCritic(OBSERVATION, ACTION, seed=2) if policy is None else deepcopy(policy)
    own = {"action": action_column(policy.action_space), "log_prob": Column(), "value": Column(bootstrap=True)}
    rollout = Rollout(ROLLOUT_STEPS, num_envs or NUM_ENVS, env_columns(policy.observation_space) | own)
    source = torch.Generator().manual_seed(0)
    rollout.observation.copy_(torch.randn(rollout.observation.shape, generator=source))
    rollout.valid.copy_(torch.rand(rollout.valid.shape, generator=source) > 0.05)
    with torch.no_grad(), fused.plain_only():
        for t in range(rollout.num_steps):
            random = torch.rand(rollout.num_envs, policy.num_draws, generator=source)
            output = policy.act(rollout.observation[t], None, random)
            rollout.action[t].copy_(output.action)
            rollout.log_prob[t].copy_(output.log_prob)  # type: ignore[arg-type]
    return policy, rollout


def _unequal(column: str, ours: Tensor, theirs: Tensor) -> Deviation:
    """A comparison by the fraction of unequal numbers, which must be 0."""
    return Deviation(column, (ours.cpu() != theirs).float().mean().item(), 0.0)


def _difference(column: str, ours: Tensor, theirs: Tensor, allowed: float) -> Deviation:
    difference = (ours.detach().cpu() - theirs.detach()).abs() / theirs.detach().abs().clamp(min=1)
    return Deviation(column, difference.nan_to_num(nan=torch.inf).max().item(), allowed)
