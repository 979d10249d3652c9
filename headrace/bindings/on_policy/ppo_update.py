"""PPO's whole update by one call of the CPU's kernels: advantages, returns, the order of rows and all gradient steps.

The plain function is headrace.algorithms.on_policy.process_and_learn. ppo.learn's kernel takes what is given to it;
this one reads a rollout where it lies, and looks at it once, until something in it has moved. Where rollouts are short
this is a tenth of an iteration's time: what Python runs after a kernel finds nothing in the processor's caches.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.on_policy import OnPolicy
from headrace.algorithms.ppo import PPO
from headrace.algorithms.reduce import number_of_minibatches, one_learner, size_of
from headrace.bindings.actor_critic_layout import CLASSES, compiled
from headrace.bindings.arguments import fits
from headrace.bindings.bound import Bound
from headrace.bindings.digests import DIGESTS
from headrace.bindings.eligibility import why_not_adam, why_not_learn
from headrace.bindings.on_policy.ppo import loss_of, metrics_of
from headrace.bindings.on_policy.rollout_learner import RolloutLearner, columns_fit, settings_of
from headrace.bindings.rng_returns_cpu import shuffles
from headrace.core import rng
from headrace.core.fused import register
from headrace.data.rollout import Rollout, flatten
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.base import is_kind
from headrace.policies.examination import last_examined
from headrace.policies.networks import VectorEncoder
from headrace.setting_schedules import is_adaptive

STEPS = ("process", "learn", "permutation", "_explained_variance")  # of an update, which an object may have of its own


class _Update:
    """What updates one policy from one rollout object, while both lie where they lay."""

    def __init__(self, algorithm: PPO, rollout: Rollout) -> None:
        policy: Any = algorithm.policy
        config, optimizer, rows = algorithm.config, algorithm.optimizer, rollout.reward.numel()
        number = number_of_minibatches(rows, config.minibatch_size, 1, one_learner)
        flat, moments = optimizer.flat, (optimizer.mean, optimizer.square)
        self.learner, self.loss = RolloutLearner(compiled(policy, flat), flat, moments), loss_of(policy, config)
        self.learner.follow(policy, rollout, config.epochs, number, self.loss)
        numbers = {"gamma": float(config.gamma), "gae_lambda": float(config.gae_lambda)}
        shuffling = {"seed": rng.word(algorithm.seed), "purpose": int(rng.Purpose.SHUFFLE)}
        self.learner.read({}, normalize=int(config.normalize_advantage), **numbers, **shuffling)
        self.returns = self.learner.returns.view(rollout.reward.shape)
        self.work = (rows * config.epochs, rows // number)

    def run(self, algorithm: PPO) -> tuple[dict[str, Tensor], Tensor]:
        policy: Any = algorithm.policy
        config, optimizer, learner = algorithm.config, algorithm.optimizer, self.learner
        if policy.return_normalizer is not None:  # it changes the units of values
            self.loss = loss_of(policy, config)
        settings = settings_of(optimizer, config.max_grad_norm, config.target_kl)
        summary = learner.update(self.loss, settings, algorithm.iteration, learner.threads(*self.work))
        optimizer.steps += learner.steps
        return metrics_of(summary, config, explained_variance=summary[2][0]), self.returns


_updates: Bound[_Update | None] = Bound()


def serves(algorithm: OnPolicy[Any], rollout: Rollout) -> bool:
    """Whether this is PPO alone, on what its kernel reads. Where it is not, ppo.learn says why, if it is asked."""
    if type(algorithm) is not PPO or algorithm.loss is not None or is_adaptive(algorithm.config):
        return False
    if size_of(algorithm.reduce) > 1 or "advantage" in rollout.columns or algorithm.intrinsic is not None:
        return False
    own, policy, optimizer, seen = vars(algorithm), algorithm.policy, algorithm.optimizer, rollout.observation
    if not is_kind(policy, ActorCritic) or type(policy.encoder) is not VectorEncoder or rollout.device.type != "cpu":
        return False
    if not isinstance(seen, Tensor) or seen.dim() != 3 or any(name in own for name in STEPS):
        return False
    if why_not_adam(optimizer, any_beta2=True) or why_not_learn(policy, optimizer):
        return False
    columns = (seen, rollout.action, rollout.log_prob, rollout.value, rollout.valid)
    others = (rollout.reward, rollout.terminated, rollout.truncated)
    memory = (optimizer.flat, optimizer.mean, optimizer.square)
    depends_on = (last_examined(policy), algorithm.config, algorithm.seed, *columns, *others, *memory)
    return _updates.get(lambda: _update(algorithm, rollout), rollout, *depends_on) is not None


def _update(algorithm: PPO, rollout: Rollout) -> _Update | None:
    """What updates from this rollout; None where the kernel cannot read it as it lies."""
    policy, rows = algorithm.policy, rollout.reward.numel()
    action = flatten(rollout.action).reshape(rows, -1).t()
    columns = (action, rollout.log_prob, rollout.observation.permute(2, 0, 1))
    fit = (
        columns_fit(policy, rollout, rollout.log_prob, rollout.reward)  # type: ignore[arg-type]
        and all(column.is_contiguous() for column in columns)
        and targets_fit(algorithm, rollout)
    )
    return _Update(algorithm, rollout) if fit else None


def targets_fit(algorithm: PPO, rollout: Rollout) -> bool:
    """Whether a kernel can read all that advantages, returns and the order of rows follow from."""
    steps, envs = rollout.reward.shape
    floats, flags = (rollout.reward, rollout.value), (rollout.terminated, rollout.truncated, rollout.valid)
    return (
        all(fits(x, torch.float32, n, envs) for x, n in zip(floats, (steps, steps + 1), strict=True))
        and all(fits(x, torch.bool, n, envs) for x, n in zip(flags, (steps, steps, steps + 1), strict=True))
        and all(x.is_contiguous() for x in (*floats, *flags))
        and shuffles(algorithm.seed, algorithm.config.epochs, steps * envs)
    )


@register("on_policy.process_and_learn", serves, DIGESTS["on_policy.process_and_learn"], (*CLASSES, Adam, PPO))
@torch.no_grad()
def process_and_learn(algorithm: PPO, rollout: Rollout) -> tuple[dict[str, Tensor], Tensor]:
    """headrace.algorithms.on_policy.process_and_learn of PPO: the same bits as the kernels that it calls."""
    update = _updates.last(rollout)
    assert update is not None, "which serves() sees"
    return update.run(algorithm)
