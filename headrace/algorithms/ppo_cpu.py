"""PPO's learning call by the CPU's kernels. The plain one is headrace.algorithms.ppo.learn."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.minibatches import count
from headrace.algorithms.on_policy import normalized
from headrace.algorithms.ppo import METRICS, PPOConfig
from headrace.device import kernel_threads
from headrace.fused import register
from headrace.kernels.compiled import entry
from headrace.kernels.native import Call, Native
from headrace.kernels.ppo_job import DONE, PART, PARTS, STEPS, SUMS, Columns, Job, Loss
from headrace.kernels.tables import WORKERS, aligned, rounded
from headrace.kernels.teamwork import Team, state
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.compiled import compiled, encoded
from headrace.policies.distributions import Categorical, Gaussian, MultiCategorical, SquashedGaussian
from headrace.policies.heads import CategoricalHead, GaussianHead, MultiCategoricalHead
from headrace.policies.networks import MLP, Readout
from headrace.policies.served import flat_parameters, why_not
from headrace.rollout import Rollout, flatten

# Of the plain source that the kernel was written after, and what else that calls. Where a test says that they differ:
# bring the kernel after the source, see that tests/algorithms/test_ppo_cpu.py passes, and put the new digest here.
_DISTRIBUTIONS = (Categorical, MultiCategorical, Gaussian, SquashedGaussian)
DIGEST = "c275b2848448899f"
SOURCES = (
    *((ActorCritic, "forward"), (ActorCritic, "evaluate"), (Adam, "step")),
    *((MLP, "forward"), (Readout, "forward")),
    *((kind, name) for kind in _DISTRIBUTIONS for name in ("log_prob", "entropy")),
    *((head, "forward") for head in (CategoricalHead, MultiCategoricalHead, GaussianHead)),
)
WORTH_HELP = 1e8  # floating-point operations below which waking another thread costs more than it saves
ANNOUNCEMENT = "compiling PPO's learning call (once, about 4 s) ..."


class _Learner:
    """Learns for one policy, as long as its parameters lie where they lay."""

    def __init__(self, policy: ActorCritic, optimizer: Adam) -> None:
        self.address = optimizer.flat.data_ptr()
        self.tables = compiled(policy, optimizer.flat)
        flat = (optimizer.flat, optimizer.mean, optimizer.square)
        self.arrays = (
            *(*(x.numpy() for x in flat), aligned(optimizer.flat.numel())),
            aligned(WORKERS, rounded(self.tables.scratch)),
            aligned(PARTS, self.tables.network.gradient),
            aligned(PARTS * len(self.tables.trees), SUMS),
            aligned(8),
        )
        self.team = Team()
        self.native: Native | None = None

    def learn(self, policy: ActorCritic, optimizer: Adam, columns: Any, order: Tensor, config: PPOConfig) -> Tensor:
        """Sums over each minibatch, float32 [minibatches, SUMS]."""
        tables, number = self.tables, count(order.shape[1], config.minibatch_size)
        sums = torch.zeros(len(order) * number, SUMS)
        batch = np.zeros(8, np.int64)
        job = Job(
            *(tables.network.layers, tables.trees, tables.ranges, tables.head, tables.places),
            *(self._loss(policy, config), *columns),
            *(order.contiguous().numpy(), *self.arrays, batch),
        )
        at = (float(optimizer.steps), float(optimizer.learning_rate))
        settings = (*at, float(optimizer.eps), float(config.max_grad_norm), float(config.target_kl))
        arguments = (0, state(), job, number, settings, sums.view(-1).numpy())
        if self.native is None:
            self.native = entry("ppo_cpu", "learn", arguments, ANNOUNCEMENT)
        self.team.run(Call(self.native, arguments), self._threads(order.numel(), order.shape[1] // number))
        optimizer.steps += int(batch[STEPS])
        return sums[: batch[DONE]]

    def _threads(self, samples: int, size: int) -> int:
        """As many as there are cores, and parts in a minibatch of this size; one for little work."""
        if 6 * len(self.arrays[0]) * samples < WORTH_HELP:
            return 1
        parts = min(PARTS, -(-size // PART)) * len(self.tables.trees)
        return min(kernel_threads(), WORKERS, parts)

    def _loss(self, policy: ActorCritic, config: PPOConfig) -> Any:
        normalizer = policy.return_normalizer
        units = (0.0, 1.0) if normalizer is None else (normalizer.center.item(), normalizer.scale.item())
        coefficients = (config.clip, config.value_clip, config.value_coef, config.entropy_coef)
        return Loss(*map(np.float32, (*coefficients, *units)))

    def columns(
        self, policy: ActorCritic, rollout: Rollout, advantage: Tensor, returns: Tensor, config: PPOConfig
    ) -> Any:
        """The rollout as the kernel reads it, after what it is to do to observations first."""
        steps = rollout.num_steps
        valid = rollout.valid[:steps].flatten()
        observation, stride, normalizer = encoded(policy, flatten(rollout.observation[:steps]))
        action = flatten(rollout.action).view(len(valid), -1).t() - self.tables.start
        chosen = normalized(advantage.flatten(), valid) if config.normalize_advantage else advantage.flatten()
        value = rollout.value[:steps].flatten()
        columns = (action, rollout.log_prob.flatten(), value, chosen, returns.flatten(), valid)
        arrays = (x.to(torch.float32).contiguous().numpy() for x in columns)
        return normalizer, Columns(observation, np.uint64(stride), *arrays)


_learners: WeakKeyDictionary[ActorCritic, _Learner] = WeakKeyDictionary()


def serves(
    policy: Any,
    optimizer: Adam,
    rollout: Rollout,
    advantage: Tensor,
    returns: Tensor,
    permutation: Tensor,
    config: Any,
) -> bool | str:
    """Whether the kernel knows this policy and optimizer; else the reason."""
    if rollout.device.type != "cpu":
        return False
    if type(optimizer) is not Adam:
        return f"{type(optimizer).__name__} is not the Adam it was written for"
    flat = flat_parameters(policy)
    if flat is None or flat.data_ptr() != optimizer.flat.data_ptr():
        return "parameters are not float32 views of the optimizer's buffer"
    return why_not(policy) or True


@register("ppo.learn", serves, DIGEST, SOURCES)
@torch.no_grad()
def learn(
    policy: ActorCritic,
    optimizer: Adam,
    rollout: Rollout,
    advantage: Tensor,
    returns: Tensor,
    permutation: Tensor,
    config: PPOConfig,
) -> dict[str, Tensor]:
    """headrace.algorithms.ppo.learn, with the same results within rounding."""
    learner = _learners.get(policy)
    if learner is None or learner.address != optimizer.flat.data_ptr():
        learner = _learners[policy] = _Learner(policy, optimizer)
    columns = learner.columns(policy, rollout, advantage, returns, config)
    sums = learner.learn(policy, optimizer, columns, permutation, config)
    return _metrics(sums, count(permutation.shape[1], config.minibatch_size), config)


def _metrics(sums: Tensor, number: int, config: PPOConfig) -> dict[str, Tensor]:
    """As the plain function's, from sums over each minibatch."""
    policy_loss, value_loss, entropy, _, clip_fraction = sums.mean(0)[:5]
    loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy
    metrics = dict(zip(METRICS, (policy_loss, value_loss, -entropy, loss), strict=True))
    return metrics | {"clip_fraction": clip_fraction, "approx_kl": sums[-number:, 3].mean()}
