"""Acting and PPO's learning by CUDA kernels. offer() registers them, where they agree with plain torch on this machine
(headrace.checks.parity)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.on_policy import Loss, Targets
from headrace.algorithms.ppo import METRICS, PPOConfig
from headrace.algorithms.reduce import Reduce, normalized, number_of_minibatches, one_learner, size_of
from headrace.bindings.actor_critic_layout import CLASSES, dense_layer, encoded_rows, trunk_layers
from headrace.bindings.arguments import MISFIT, fits
from headrace.bindings.bound import place
from headrace.bindings.digests import DIGESTS
from headrace.bindings.eligibility import verdict, why_not_adam, why_not_learn
from headrace.core.fused import AsChosen, kernel_of, register
from headrace.data.rollout import Rollout, flatten
from headrace.kernels.cuda import launches
from headrace.kernels.cuda.actor_critic_text import ROWS, Architecture, tile_of
from headrace.kernels.cuda.launches import Inputs, Minibatches, Step, multiprocessors
from headrace.kernels.cuda.layers_text import ACTIVATIONS
from headrace.kernels.nn.activation_table import IDENTITY
from headrace.kernels.nn.layout import Layer
from headrace.parallel.collector import InlineCollector, acts_as_written, output_columns
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.base import Policy, PolicyOutput, is_kind
from headrace.policies.examination import last_examined
from headrace.policies.heads import CategoricalHead, GaussianHead
from headrace.policies.networks import VectorEncoder
from headrace.policies.numpy_io import batch_size
from headrace.setting_schedules import is_adaptive

# rows of a minibatch from which plain torch is faster for layers that a block has 32 rows of: on an H100 an iteration
# of 2 x 128 takes 3.5 and 7.5 ms with minibatches of 2,048 rows, 47 and 36 with 131,072; this lies between
WIDE = 32_768


@functools.cache
def offer(trusted: Callable[[ActorCritic], bool]) -> None:
    """Let these kernels serve policies for which they are `trusted`."""
    acting, learning = (_if_trusted(serves, trusted) for serves in (serves_acting, serves_learning))
    register("actor_critic.act", acting, DIGESTS["actor_critic.act"], CLASSES)(act)
    register("actor_critic.value", acting, DIGESTS["actor_critic.value"], CLASSES)(value)
    register("collector.steps", serves_steps, DIGESTS["collector.steps"], (InlineCollector,))(steps)
    register("ppo.learn", learning, DIGESTS["ppo.learn"], (*CLASSES, Adam))(learn)


def _if_trusted(serves: Callable[..., bool | str], trusted: Callable[[ActorCritic], bool]) -> Callable[..., bool | str]:
    """A function that says whether a kernel serves, and asks once for each architecture whether it is trusted."""
    asked: dict[tuple[Architecture, torch.device], bool] = {}

    def serves_if_trusted(policy: ActorCritic, *call: Any) -> bool | str:
        found = serves(policy, *call)
        if found is not True:
            return found
        key = _architecture(policy), policy.device
        if key not in asked:
            asked[key] = trusted(policy)
        return asked[key]

    return serves_if_trusted


def text(policy: ActorCritic) -> str:
    """The text of all kernels that are made for a policy that they know."""
    return launches.text(_architecture(policy), policy.device)


class Known(NamedTuple):
    """Facts about a policy as it is now: the reason why the kernels do not support it, or the architecture."""

    reason: str | None
    architecture: Architecture | None  # None also where its parameters are not in one buffer


def known(policy: Any) -> Known:
    """Takes some microseconds where nothing in the policy has changed."""
    found = verdict(policy)
    kept = last_examined(policy).kept
    if Known not in kept:
        reason = found.acting or _why_not(policy)
        architecture = None if reason or found.flat is None else architecture_of(policy, found.flat)
        if architecture is not None and tile_of(architecture, 1, 1) is None:
            reason = AsChosen(f"on a GPU hidden layers of {policy.hidden} do not fit in a block's memory")
        kept[Known] = Known(reason, architecture)
    return kept[Known]  # type: ignore[no-any-return]


def _why_not(policy: Any) -> str | None:
    """Reason why these kernels do not support a policy that the CPU's do. None where they support it."""
    if policy.shared or policy.masked or policy.layer_norm:
        return AsChosen("on a GPU it is for networks without shared layers, action masks and layer normalisation")
    if policy.critic_hidden != policy.hidden:
        return AsChosen("on a GPU it is for an actor and a critic with hidden layers of the same sizes")
    if type(policy.encoder) is not VectorEncoder:
        return AsChosen(f"on a GPU it is for a VectorEncoder, not for {type(policy.encoder).__name__}")
    if type(policy.head) not in (CategoricalHead, GaussianHead) or getattr(policy.head, "squash", False):
        head = type(policy.head).__name__
        return AsChosen(f"on a GPU it is for one categorical choice and for Gaussians, not for {head}")
    if policy.activation not in ACTIVATIONS or not policy.hidden:
        return AsChosen(f"on a GPU it is for hidden layers of {', '.join(ACTIVATIONS)}, not for {policy.activation}")
    return None


def architecture_of(policy: ActorCritic, flat: Tensor) -> Architecture:
    """Find the architecture of a policy whose parameters are views of `flat`."""
    actor, critic = list[Layer](), list[Layer]()
    for mlp, out, layers in ((policy.actor, policy.actor_out, actor), (policy.critic, policy.critic_out, critic)):
        dense_layer(out, trunk_layers(mlp, layers, policy.activation, flat), IDENTITY, layers, flat)
    gaussian = isinstance(policy.head, GaussianHead)
    log_std = place(policy.head.log_std, flat) if gaussian else None
    return Architecture(tuple(actor), tuple(critic), log_std, 0 if gaussian else policy.head.start)


def _architecture(policy: ActorCritic) -> Architecture:
    """Architecture of a policy that the kernels support."""
    found = known(policy).architecture
    assert found is not None  # else it was refused
    return found


def serves_acting(
    policy: ActorCritic, observation: Any, rnn_state: Any = None, random: Tensor | None = None
) -> bool | str:
    """Tell whether a batch of observations is on a GPU, and the kernels support the policy; else give the reason."""
    if not isinstance(observation, Tensor) or observation.device.type != "cuda" or not batch_size(observation):
        return False
    if torch.is_grad_enabled() or policy.critic_out.weight.device != observation.device:
        return False
    if random is not None and not fits(random, torch.float32, len(observation), policy.num_draws, device="cuda"):
        return MISFIT
    found = known(policy)
    if found.reason is None and (observation.dtype != torch.float32 or observation[0].numel() != policy.encoder.size):
        return MISFIT
    return found.reason or found.architecture is not None


@torch.no_grad()
def act(policy: ActorCritic, observation: Tensor, rnn_state: Any, random: Tensor | None) -> PolicyOutput:
    """ActorCritic.act, within rounding."""
    rows, device = len(observation), observation.device
    discrete = isinstance(policy.head, CategoricalHead)
    action = torch.empty(
        1 if discrete else policy.head.num_parameters,
        rows,
        dtype=torch.int32 if discrete else torch.float32,
        device=device,
    )
    log_prob, value = torch.empty(rows, device=device), torch.empty(rows, device=device)
    drawn = _nothing(device)[2] if random is None else random.t().contiguous().unsqueeze(0)
    inputs = _inputs(policy, encoded_rows(policy, observation))
    outputs = (action, log_prob, value)
    launches.act(_architecture(policy), inputs, (0, rows, 0), drawn, 0, random is not None, outputs)
    return PolicyOutput(action[0] if discrete else action.t(), log_prob, value, rnn_state)


@torch.no_grad()
def value(policy: ActorCritic, observation: Tensor, rnn_state: Any = None) -> Tensor:
    """ActorCritic.value, within rounding."""
    rows, device = len(observation), observation.device
    found = torch.empty(rows, device=device)
    inputs = _inputs(policy, encoded_rows(policy, observation))
    _values(policy, inputs, (0, rows, 0), found)
    return found


def serves_steps(collector: InlineCollector, first_step: int | Tensor) -> bool:
    """Tell whether these kernels act, which can read and write the rollout's columns where they lie."""
    policy, rollout = collector.policy, collector.rollout
    if rollout.device.type != "cuda" or not is_kind(policy, ActorCritic) or rollout.num_envs != collector.env.num_envs:
        return False
    if not acts_as_written(collector) or not isinstance(rollout.observation, Tensor):
        return False
    if output_columns(rollout) != ["action", "log_prob", "value"]:
        return False
    if _rows(rollout).data_ptr() != rollout.observation.data_ptr():
        return False
    seen = rollout.observation[0]
    return (
        kernel_of(ActorCritic.act, policy, seen, None, None) is act
        and kernel_of(ActorCritic.value, policy, seen) is value
    )


@torch.no_grad()
def steps(collector: InlineCollector, first_step: int | Tensor) -> None:
    """headrace.parallel.collector.steps, within rounding: a launch for the policy and one for the environments."""
    policy, rollout, timer, env = collector.policy, collector.rollout, collector.timer, collector.env
    assert isinstance(policy, ActorCritic)
    with timer("inference"):
        random = collector._random(first_step).transpose(1, 2)
        inputs, architecture = _inputs(policy, _rows(rollout)), _architecture(policy)
        outputs = (_actions(rollout), flatten(rollout.log_prob), flatten(rollout.value))
    number = rollout.num_envs
    for t in range(rollout.num_steps):
        with timer("inference"):
            collector.check_stop()
            launches.act(architecture, inputs, (t * number, number, t * number), random, t, True, outputs)
        with timer("env"):
            env.step(rollout, t)
    with timer("inference"):
        last = rollout.num_steps * number
        _values(policy, inputs, (last, number, last), outputs[2])


def serves_learning(
    policy: Policy,
    optimizer: Adam,
    rollout: Rollout,
    targets: Targets,
    order: Tensor,
    config: PPOConfig,
    reduce: Reduce = one_learner,
    loss: Loss | None = None,
) -> bool | str:
    """Tell whether the rollout is on a GPU, and the kernels support policy and optimizer; else give the reason."""
    if rollout.device.type != "cuda" or size_of(reduce) > 1 or loss is not None or is_adaptive(config):
        return False
    reason = why_not_adam(optimizer, any_beta1=True, any_beta2=True) or why_not_learn(policy, optimizer)
    reason = reason or known(policy).reason
    if reason is None and not all(p.requires_grad for p in optimizer.parameters):
        reason = "on a GPU frozen parameters are left as they are by torch"
    if reason is None and _too_wide(policy, min(config.minibatch_size, order.shape[1])):
        reason = f"on a GPU hidden layers of {policy.hidden} learn from large minibatches faster in torch"
    return reason or _fit(policy, rollout, targets, order) or MISFIT


def _fit(policy: Any, rollout: Rollout, targets: Targets, order: Tensor) -> bool:
    """Tell whether all columns are of the dtypes and shapes that the kernel reads."""
    shape, on = rollout.reward.shape, rollout.reward.device
    return (
        fits(targets.valid, torch.bool, *shape, device=on)
        and fits(rollout.observation, torch.float32, *rollout.observation.shape, device=on)
        and _columns_fit(policy, rollout, rollout.log_prob, targets.advantage, targets.returns)
        and order.dim() == 2
        and fits(order, torch.int64, len(order), rollout.reward.numel(), device=on)
    )


def _columns_fit(policy: Any, rollout: Rollout, *columns: Tensor) -> bool:
    """True if the columns [T, N], and the actions of this policy, are what the kernel reads."""
    shape, on = rollout.reward.shape, rollout.reward.device
    gaussian = isinstance(policy.head, GaussianHead)
    floats = all(fits(x, torch.float32, *shape, device=on) for x in (*columns, rollout.value[: rollout.num_steps]))
    components = policy.head.num_parameters if gaussian else 1
    kind = torch.float32 if gaussian else torch.int32
    return floats and rollout.action.dtype == kind and rollout.action.numel() == rollout.reward.numel() * components


def _too_wide(policy: Any, minibatch_size: int) -> bool:
    """Tell whether plain torch is faster: for large minibatches of wide layers, of which a block has few rows."""
    tile = tile_of(_architecture(policy), minibatch_size, multiprocessors(policy.device))
    return tile is not None and tile.rows < ROWS[0] and minibatch_size > WIDE


@torch.no_grad()
def learn(
    policy: ActorCritic,
    optimizer: Adam,
    rollout: Rollout,
    targets: Targets,
    permutation: Tensor,
    config: PPOConfig,
    reduce: Reduce = one_learner,
    loss: Loss | None = None,
) -> dict[str, Tensor]:
    """headrace.algorithms.ppo.learn, with the same results within rounding."""
    epochs, rows = permutation.shape
    number = number_of_minibatches(rows, config.minibatch_size, 1, reduce)
    size = rows // number
    valid, advantage = flatten(targets.valid), flatten(targets.advantage)
    if config.normalize_advantage:
        advantage = normalized(advantage, valid, reduce)
    counted = valid[permutation[:, : size * number]].view(epochs * number, size).sum(1, dtype=torch.float32)
    batches = Minibatches(
        order=permutation.flatten(),
        action=_actions(rollout),
        log_prob=flatten(rollout.log_prob),
        value=flatten(rollout.value),
        advantage=advantage.contiguous(),
        returns=flatten(targets.returns),
        valid=valid,
        share=counted.clamp_(min=1).reciprocal_(),
    )
    adam = Step(
        optimizer.flat,
        optimizer.mean,
        optimizer.square,
        optimizer.steps.view(1),
        optimizer.learning_rate.view(1),
        torch.zeros(1, device=rollout.device),
        config.max_grad_norm,
        optimizer.eps,
        optimizer.beta1,
        optimizer.beta2,
    )
    starts = [epoch * rows + k * size for epoch in range(epochs) for k in range(number)]
    coefficients = (config.clip, config.value_clip, config.value_coef, config.entropy_coef)
    inputs = _inputs(policy, _rows(rollout))
    most = 1.5 * config.target_kl if config.target_kl else math.inf
    sums = launches.learn(_architecture(policy), inputs, batches, size, starts, coefficients, adam, most)
    return _metrics(sums, number, config)


def _metrics(sums: Tensor, number: int, config: PPOConfig) -> dict[str, Tensor]:
    """Compute the plain function's metrics from sums [minibatches, 5]."""
    gain, error, entropy, clipped, _ = sums.mean(0)
    loss = -gain + config.value_coef * error - config.entropy_coef * entropy
    found = (-gain, error, -entropy, loss, clipped, sums[-number:, 4].mean())
    return dict(zip(METRICS, found, strict=True))


def _values(policy: ActorCritic, inputs: Inputs, columns: tuple[int, int, int], found: Tensor) -> None:
    """Values alone."""
    nothing = _nothing(found.device)
    action = nothing[3] if isinstance(policy.head, CategoricalHead) else nothing[1]
    launches.act(
        _architecture(policy), inputs, columns, nothing[2], 0, False, (action, found, found), values_alone=True
    )


def _rows(rollout: Rollout) -> Tensor:
    """Observations [F, (T + 1) * N], where they lie."""
    seen = flatten(rollout.observation)
    return (seen if seen.dim() == 2 else seen.reshape(len(seen), -1)).t()


def _actions(rollout: Rollout) -> Tensor:
    """Actions [K, T * N], where they lie."""
    action = flatten(rollout.action)
    return action.unsqueeze(0) if action.dim() == 1 else action.t()


def _inputs(policy: ActorCritic, observation: Tensor) -> Inputs:
    """observation: [F, rows]."""
    device, flat = observation.device, verdict(policy).flat
    assert flat is not None
    zeros, ones = _identity(policy.encoder.size, device)
    normalizer, units = policy.encoder.normalizer, policy.return_normalizer
    center, scale, limit = (
        (zeros, ones, math.inf) if normalizer is None else (normalizer.center, normalizer.scale, normalizer.limit)
    )
    value_units = (zeros[:1], ones[:1]) if units is None else (units.center.view(1), units.scale.view(1))
    head = policy.head
    spread = _nothing(device)[1]
    if isinstance(head, GaussianHead):
        spread = torch.stack((head.center[:, 0], head.half_range[:, 0]))
    return Inputs(flat, observation, center, scale, limit, spread, *value_units)


@functools.cache
def _identity(features: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Center and scale of observations that are not normalised."""
    return torch.zeros(features, device=device), torch.ones(features, device=device)


@functools.cache
def _nothing(device: torch.device) -> tuple[Tensor, ...]:
    """Floats of one to three dimensions and integers of two, in place of what is not read."""
    floats = tuple(torch.zeros((1,) * dimensions, device=device) for dimensions in (1, 2, 3))
    return *floats, torch.zeros(1, 1, dtype=torch.int32, device=device)
