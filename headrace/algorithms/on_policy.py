"""The base of algorithms that learn from each rollout of their own policy once.

Their losses are plain functions `loss(policy, batch, config)` that return a scalar and a dict of metrics, which are
also scalars: means over valid rows. `batch` has rows of the columns for learning, and "weight" [B]. A valid row has
weight 1 / number of valid rows and others 0, so that `x @ batch["weight"]` is the mean over valid rows. With several
learners that number counts the rows of all, and the loss and metrics of each are its part of the sums.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Self, TypeAlias, TypeVar

import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from torch import Tensor, nn

from headrace import setting_schedules
from headrace.algorithms.adam import BETA2, Adam
from headrace.algorithms.base import INTRINSIC, intrinsic_of
from headrace.algorithms.config_bases import MATRIX_STD, OnPolicyConfig
from headrace.algorithms.reduce import (
    Reduce,
    explained,
    loss_and_metrics,
    mean_weights,
    merging,
    one_learner,
    shuffle_seed,
    size_of,
)
from headrace.core import rng
from headrace.core.device import known
from headrace.core.fused import fused
from headrace.core.returns import explained_variance, gae, normalized_by
from headrace.core.types import staying
from headrace.data.flat_action import FlatAction
from headrace.data.minibatches import minibatches
from headrace.data.rollout import Column, Columns, Rollout
from headrace.data.spaces import Space
from headrace.policies.actor_critic import ActorCritic, AsymmetricActorCritic
from headrace.policies.base import Policy
from headrace.policies.examination import Examination, examine
from headrace.policies.heads import GaussianHead
from headrace.policies.own_parts import check_learnable
from headrace.policies.recurrent import RecurrentActorCritic

Batch: TypeAlias = dict[str, Any]
Loss: TypeAlias = Callable[[Any, Batch, Any], tuple[Tensor, dict[str, Tensor]]]  # of (policy, batch, config)
Limit: TypeAlias = tuple[str, float]  # a metric, and the value above which no more steps are taken
if TYPE_CHECKING:  # a default, which typing's own have from Python 3.13 on
    from typing_extensions import TypeVar as _TypeVar

    C = _TypeVar("C", bound=OnPolicyConfig, default=OnPolicyConfig)
else:
    C = TypeVar("C", bound=OnPolicyConfig)
AnyActorCritic = ActorCritic | AsymmetricActorCritic | RecurrentActorCritic
POLICY_SETTINGS = (
    "hidden",
    "activation",
    "shared",
    "distribution",
    "normalize_observation",
    "normalize_return",
    "layer_norm",
    "images",
    "critic_hidden",
    "ortho_init",
    "use_sde",
    "state_std",
)  # fields of a config that go to the ActorCritic under the same name


class Targets(NamedTuple):
    """The targets of learning from a rollout, [T, N] each."""

    advantage: Tensor
    returns: Tensor
    valid: Tensor  # bool: rows that count
    log_prob: Tensor | None = None  # of the policy at the beginning of learning; None: as collected


class OnPolicy(Generic[C]):
    """A policy, one optimizer for all its parameters, and a learning rate schedule.

    Subclasses have a class attribute `config`, their default settings, and define learn(), or gradient() for one step
    on each rollout. process() computes advantages by generalised advantage estimation, if the config has `gae_lambda`.
    """

    name: ClassVar[str]
    actions: ClassVar[tuple[type[Space], ...]] = (Discrete, MultiDiscrete, MultiBinary, Box, FlatAction)
    max_lag: ClassVar[int | None] = 1  # as HTS-RL (Liu et al. 2020, arXiv:2012.09849); more needs V-trace
    gradient_modes: ClassVar[tuple[str, ...]] = ()  # modes of collection in which actors may compute gradient()
    config: C
    reduce: Reduce = staticmethod(one_learner)
    __setattr__ = staying("policy", "config", "num_steps")

    def __init__(self, policy: Policy, config: C | None = None, seed: int = 0) -> None:
        self.config = config or self.config
        check_learnable(policy, type(self).__name__, self.config)
        _check_members(policy, getattr(self.config, "critic_members", ()))
        self.policy, self.seed = policy, seed
        self.num_steps: int = self.config.num_steps
        self.optimizer = self._adam(policy)
        self._examined: Examination | None = None  # the policy, as `optimizer` knows it
        self.intrinsic: Any = intrinsic_of(INTRINSIC, policy, self.config, seed)
        self.iteration = 0

    @classmethod
    def build(
        cls, config: C, observation_space: Space, action_space: Space, seed: int, device: torch.device | str
    ) -> Self:
        """Make this algorithm with its usual policy on a device. Raises TypeError for spaces it cannot learn on."""
        return cls(cls.make_policy(config, observation_space, action_space, seed).to(device), config, seed)

    @classmethod
    def make_policy(cls, config: C, observation_space: Space, action_space: Space, seed: int) -> Policy:
        """Make the usual policy: an actor and a critic, recurrent if the config says so."""
        return actor_critic(config, observation_space, action_space, seed)

    def columns(self) -> dict[str, Column | Columns]:
        """Columns: log_prob and value of the actions taken, a bootstrap row of values, and those that the policy
        needs."""
        return {"log_prob": Column(), "value": Column(bootstrap=True)} | self.policy.columns()

    def warm_up(self, rollout: Rollout) -> None:
        """Learn once from a random rollout, then restore all state: kernels are compiled before training starts."""
        before = self.state_dict()
        self.update(rollout, 0.0)
        self.load_state_dict(before)

    def prepare(self, rollout: Rollout) -> str:
        """Do nothing: nothing depends on the number of environments."""
        return ""

    def process(self, rollout: Rollout) -> Targets:
        """Advantages and returns of a rollout, by GAE(gamma, gae_lambda)."""
        return gae_targets(rollout, self.config.gamma, getattr(self.config, "gae_lambda", 1.0))

    def learn(self, rollout: Rollout, targets: Targets) -> dict[str, Tensor]:
        """Change the policy. Returns metrics as scalars on the device."""
        return self.apply(self.gradient(rollout, targets))

    def gradient(self, rollout: Rollout, targets: Targets) -> dict[str, Tensor]:
        """Add this learner's part of the gradient to the optimizer's. Returns its part of the metrics."""
        raise NotImplementedError

    def apply(self, metrics: dict[str, Tensor]) -> dict[str, Tensor]:
        """Sum the gradient and the metrics over all learners, and take the step."""
        self.reduce(self.optimizer.gradient, *metrics.values())
        self.optimizer.step(self.config.max_grad_norm)
        return metrics

    def update(self, rollout: Rollout, progress: float) -> dict[str, Tensor]:
        """Process a rollout of this policy and learn from it. progress: fraction of the training done, 0 .. 1.

        Returns learn()'s metrics, the explained_variance of the collected values, and the learning_rate.
        """
        self.begin_update(progress)
        metrics, returns = process_and_learn(self, rollout)
        with merging(self.policy, self.reduce):
            self.policy.update_statistics(rollout, returns)
        return self.end_update(metrics)

    def _explained_variance(self, value: Tensor, targets: Targets) -> Tensor:
        if size_of(self.reduce) == 1:
            return explained_variance(value, targets.returns, targets.valid)
        return explained(value, targets.returns, targets.valid, self.reduce)

    def begin_update(self, progress: float) -> None:
        """Prepare for learning: take the policy's present parameters, and the scheduled settings."""
        self._follow_policy()
        self.config = setting_schedules.at(self.config, progress)
        self.set_learning_rate(progress)

    def end_update(self, metrics: dict[str, Tensor]) -> dict[str, Tensor]:
        """Finish learning: count the update. Returns its metrics, with the learning_rate."""
        metrics["learning_rate"] = self.optimizer.learning_rate.clone()
        self.iteration += 1
        return metrics

    def _follow_policy(self) -> None:
        """Learn the policy's present parameters, since its modules and their parameters may have been replaced."""
        if not isinstance(self.optimizer, Adam):
            raise TypeError(f"optimizer must be an Adam of headrace.algorithms.adam, got {self.optimizer!r}")
        if examine(self.policy) is self._examined and self.optimizer.has_gradients():
            return
        if not self.optimizer.follow(self.policy.parameters()):
            print(f"{self.name}: the policy has other parameters now, and its optimizer begins again", file=sys.stderr)
            self.optimizer = self._adam(self.policy)
        self._examined = examine(self.policy)

    def _adam(self, policy: Policy) -> Adam:
        """Make an optimizer of all the policy's parameters. A user's config may not have all settings."""
        return Adam(policy.parameters(), self.config.learning_rate, beta2=getattr(self.config, "adam_beta2", BETA2))

    def set_learning_rate(self, progress: float) -> None:
        """Set the learning rate by the config's schedule, unless it is constant or adaptive."""
        if (rate := setting_schedules.learning_rate(self.config, progress)) is not None:
            self.optimizer.learning_rate.fill_(rate)
            if self.intrinsic is not None:
                self.intrinsic.optimizer.learning_rate.fill_(rate)

    def permutation(self, rollout: Rollout, epochs: int) -> Tensor:
        """The order of rows in each epoch: int64 [epochs, T * N]. A function of seed, learner and iteration.

        Rows of one sequence stay together.
        """
        unit, shuffle = self.policy.sequence_length, rng.Purpose.SHUFFLE
        units = rollout.num_steps * rollout.num_envs // unit
        seed = shuffle_seed(self.seed, self.reduce)
        order = rng.permutations(seed, shuffle, self.iteration, epochs, units, rollout.device)
        if unit == 1:
            return order
        within = torch.arange(unit, device=rollout.device)
        return (order.unsqueeze(-1) * unit + within).flatten(1)

    def state_dict(self) -> dict[str, Any]:
        """Copies of the policy's and the optimizer's tensors, and the number of updates done."""
        policy = {name: tensor.clone() for name, tensor in self.policy.state_dict().items()}
        own = {"policy": policy, "optimizer": self.optimizer.state_dict(), "iteration": self.iteration}
        if setting_schedules.is_adaptive(self.config):
            own["learning_rate"] = {"now": self.optimizer.learning_rate.clone(), "start": self.config.learning_rate}
        return own if self.intrinsic is None else {**own, "intrinsic": self.intrinsic.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from state_dict(), bit for bit."""
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.iteration = int(state["iteration"])
        rate = state.get("learning_rate", {})
        if rate.get("start") == self.config.learning_rate:  # otherwise another rate was given on resuming
            self.optimizer.learning_rate.copy_(rate["now"])
        if self.intrinsic is not None:
            self.intrinsic.load_state_dict(state["intrinsic"])


@fused("on_policy.process_and_learn", "headrace.bindings.compiled.compiled_update", quiet=True)
def process_and_learn(algorithm: OnPolicy[Any], rollout: Rollout) -> tuple[dict[str, Tensor], Tensor]:
    """Learn, between begin_update() and end_update(). Returns metrics, and the returns [T, N] that were learned."""
    intrinsic: dict[str, Tensor] = {}
    if algorithm.intrinsic is None:
        targets = processed(rollout) or algorithm.process(rollout)
    else:
        targets, intrinsic = algorithm.intrinsic.process(algorithm, rollout)
    metrics = algorithm.learn(rollout, targets) | intrinsic
    metrics["explained_variance"] = algorithm._explained_variance(rollout.value[:-1], targets)
    return metrics, targets.returns


PROCESSED: dict[str, Column | Columns] = {  # columns for the result of process(), if actors call it
    "advantage": Column(),
    "returns": Column(),
    "counted": Column(dtype=torch.bool),
}


def processed(rollout: Rollout) -> Targets | None:
    """The targets in a rollout's columns PROCESSED; None without them."""
    if "advantage" not in rollout.columns:
        return None
    return Targets(rollout.advantage, rollout.returns, rollout.counted)


def gae_targets(rollout: Rollout, gamma: float, gae_lambda: float) -> Targets:
    """Generalised advantage estimates, and returns = advantages + values."""
    value, ends = rollout.value, (rollout.terminated, rollout.truncated)
    advantage = gae(rollout.reward, value[:-1], value[1:], *ends, gamma, gae_lambda)
    return Targets(advantage, advantage + value[:-1], rollout.valid[:-1])


def actor_critic(config: OnPolicyConfig, observation_space: Space, action_space: Space, seed: int) -> AnyActorCritic:
    """Make the actor and critic of a config, recurrent unless its `recurrent` is "none". The standard deviation of Box
    actions starts at its `initial_std`. Raises ValueError for settings that do not go together."""
    named = {field.name: getattr(config, field.name) for field in fields(config)}
    settings = {name: named[name] for name in POLICY_SETTINGS if name in named}
    recurrent = named.get("recurrent", "none")
    if settings.pop("use_sde", False):
        settings |= {"use_sde": True, "sde_sample_freq": _sample_freq(named), "use_expln": named["use_expln"]}
        if other := next((name for name in ("recurrent", "critic_members") if named.get(name) not in ("none", ())), ""):
            raise ValueError(f"use_sde does not go with {other}={named[other]!r}: leave one of them out")
    policy: AnyActorCritic
    if members := named.get("critic_members", ()):
        if recurrent != "none" or settings.pop("shared", False):
            other = "shared=True" if recurrent == "none" else f"recurrent={recurrent!r}"
            raise ValueError(f"critic_members={members} does not go with {other}: leave one of them out")
        policy = AsymmetricActorCritic(observation_space, action_space, members, seed=seed, **settings)
    elif recurrent == "none":
        policy = ActorCritic(observation_space, action_space, seed=seed, **settings)
    elif settings.pop("layer_norm", False):
        raise ValueError("layer_norm is for policies that are not recurrent: leave out recurrent, or layer_norm")
    elif settings.pop("critic_hidden", None) is not None:
        raise ValueError(
            "critic_hidden is for policies that are not recurrent, in which actor and critic have the same sizes, got "
            f"{named['critic_hidden']}: leave out recurrent, or critic_hidden"
        )
    else:
        sizes = (named["rnn_size"], named["sequence_length"] or config.num_steps)
        policy = RecurrentActorCritic(observation_space, action_space, recurrent, *sizes, seed=seed, **settings)
    if isinstance(policy.head, GaussianHead):
        nn.init.constant_(
            policy.head.log_std, math.log(named.get("initial_std") or (MATRIX_STD if named.get("use_sde") else 1.0))
        )
    return policy


def _sample_freq(settings: Mapping[str, Any]) -> int:
    """Number of steps for which a noise matrix of state-dependent exploration is kept; -1 means a rollout's."""
    given = settings["sde_sample_freq"]
    return int(settings["num_steps"] if given == -1 else given)


def _check_members(policy: Policy, wanted: tuple[str, ...]) -> None:
    """Raise ValueError if a given policy's actor sees members that are only for the critic."""
    if wanted and tuple(getattr(policy, "critic_members", ())) != tuple(wanted):
        name = type(policy).__name__
        raise ValueError(
            f"critic_members is {', '.join(wanted)}, and {name}, the policy that was given, has no such critic: leave "
            f"the policy or critic_members out, or derive {name} from headrace.AsymmetricActorCritic"
        )


def policy_gradient_columns(
    policy: Policy, rollout: Rollout, targets: Targets, config: OnPolicyConfig, reduce: Reduce
) -> dict[str, Any]:
    """Columns that the loss of a policy gradient is computed from, as rows of a rollout."""
    rows = policy.rows
    valid, advantage = rows(targets.valid), rows(targets.advantage)
    if config.normalize_advantage:  # type: ignore[attr-defined]
        advantage = normalized_by(reduce, advantage, valid)  # not in the kernel: an actor's part has the same bits
    columns = {"action": rows(rollout.action), "advantage": advantage, "returns": rows(targets.returns)}
    return {"inputs": policy.inputs(rollout), "valid": valid.to(torch.float32), **columns}


@fused("learning", "headrace.bindings.compiled.compiled_learning")
def learn_minibatches(
    loss: Loss,
    policy: Policy,
    optimizer: Adam,
    columns: Mapping[str, Any],
    order: Tensor,
    number: int,
    config: Any,
    reduce: Reduce = one_learner,
    limit: Limit | None = None,
) -> dict[str, Tensor]:
    """Take a step of the optimizer on each of `number` minibatches of each epoch. Returns this learner's part of the
    metrics, [minibatches] each.

    columns: [R, ...], "valid" among them, float32. order: int64 [epochs, R], the order of rows; rows of a sequence are
    consecutive. limit: a metric and a value. From the first minibatch whose metric is larger on, no step is taken, and
    the epoch is the last one.
    """
    skip = torch.zeros((), device=order.device) if limit else None
    found: list[dict[str, Tensor]] = []
    for rows in order:
        for batch in minibatches(columns, rows, number, policy.sequence_length):
            returned = loss(policy, batch | {"weight": mean_weights(batch["valid"], reduce)}, config)
            value, metrics = loss_and_metrics(returned)
            value.backward()
            found.append({name: x.detach() for name, x in metrics.items()})
            if limit is None or skip is None:
                reduce(optimizer.gradient)
            else:
                measured = found[-1][limit[0]].clone()
                reduce(optimizer.gradient, measured)
                skip = torch.maximum(skip, (measured > limit[1]).to(skip.dtype))
            optimizer.step(config.max_grad_norm, skip)
        if skip is not None and known(skip):
            break  # all further steps would be skipped
    return {name: torch.stack([metrics[name] for metrics in found]) for name in found[0]}


@fused("gradient", "headrace.bindings.compiled.compiled_learning")
def loss_gradient(
    loss: Loss, policy: Policy, columns: Mapping[str, Any], config: Any, reduce: Reduce = one_learner
) -> dict[str, Tensor]:
    """Add the gradient of a loss over all rows to the parameters' .grad. Returns this learner's part of the metrics."""
    returned = loss(policy, {**columns, "weight": mean_weights(columns["valid"], reduce)}, config)
    value, metrics = loss_and_metrics(returned)
    value.backward()
    return {name: x.detach() for name, x in metrics.items()}
