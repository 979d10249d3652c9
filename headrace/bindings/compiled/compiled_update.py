"""Update of PPO with a compiled loss: advantages, returns and the order of rows in one call, all gradient steps in
another.

The plain function is headrace.algorithms.on_policy.process_and_learn. For short rollouts, Python's work between the
parts of an update takes longer than learning.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.on_policy import OnPolicy
from headrace.algorithms.ppo import KL, PPO, ppo_loss
from headrace.algorithms.reduce import number_of_minibatches, one_learner, size_of
from headrace.bindings.actor_critic_layout import CLASSES
from headrace.bindings.arguments import fits
from headrace.bindings.bound import Bound
from headrace.bindings.compiled import compiled_learning
from headrace.bindings.compiled.compiled_losses import count_again
from headrace.bindings.compiled.loss_program import Program
from headrace.bindings.digests import DIGESTS
from headrace.bindings.rng_returns_cpu import shuffles
from headrace.core import rng
from headrace.core.fused import register
from headrace.core.looking import Moment, moment
from headrace.data.rollout import Rollout, named_tensors
from headrace.kernels.learning.processing_arguments import SHUFFLE_WORDS, Processing
from headrace.kernels.rows.targets.cpu_program import CpuProgram
from headrace.kernels.runtime.entry_points import entry
from headrace.kernels.runtime.native import Call
from headrace.policies.base import Policy
from headrace.setting_schedules import is_adaptive

STEPS = ("process", "learn", "permutation", "_explained_variance")  # of an update, which an object may have of its own
ANNOUNCEMENT = "compiling advantages and the order of rows (once, about 2 s) ..."


class _Update:
    """Targets and the order of rows of one rollout for one configuration, while its columns' addresses are the same.

    columns: of the loss, all rows, as look() found them. order, shares: see Processing.
    """

    def __init__(self, algorithm: PPO, rollout: Rollout) -> None:
        config, rows = algorithm.config, rollout.reward.numel()
        self.number = number_of_minibatches(rows, config.minibatch_size, 1, one_learner)
        self.moment: Moment | None = None  # in which `program` was found
        self.program: Program  # which found() is given
        self.order = torch.zeros(config.epochs, rows, dtype=torch.int64)
        self.shares, self.fraction = torch.zeros(config.epochs * self.number), torch.zeros(1)
        self.advantage, self.returns, self.counted = torch.zeros(3, *rollout.reward.shape)
        read = rollout.reward, rollout.value, rollout.valid, rollout.terminated, rollout.truncated
        reward, value, valid, terminated, truncated = (x.view(-1).numpy() for x in read)
        processing = Processing(
            reward=reward,
            value=value,
            valid=valid,
            terminated=terminated,
            truncated=truncated,
            envs=np.uint64(rollout.num_envs),
            gamma=float(config.gamma),
            gae_lambda=float(config.gae_lambda),
            normalize=np.uint64(config.normalize_advantage),
            seed=np.uint64(rng.word(algorithm.seed)),
            purpose=np.uint64(rng.Purpose.SHUFFLE),
            counter=np.uint64(0),
            words=np.zeros(SHUFFLE_WORDS, np.uint32),
            advantage=self.advantage.view(-1).numpy(),
            returns=self.returns.view(-1).numpy(),
            counted=self.counted.view(-1).numpy(),
            order=self.order.numpy(),
            shares=self.shares.numpy(),
            fraction=self.fraction.numpy(),
        )
        arguments = (processing, self.number)
        self.call = Call(entry("learning.processing", "process", arguments, ANNOUNCEMENT), arguments)
        self.counter = self.call.slot(0, Processing._fields.index("counter"))

    def look(self, policy: Policy, rollout: Rollout) -> dict[str, Any]:
        """Find the columns, as headrace.algorithms.ppo.learn makes them."""
        rows, steps = policy.rows, rollout.num_steps
        self.columns = {
            "inputs": policy.inputs(rollout),
            "action": rows(rollout.action),
            "log_prob": rows(rollout.log_prob),
            "value": rows(rollout.value[:steps]),
            "advantage": rows(self.advantage),
            "returns": rows(self.returns),
            "valid": rows(self.counted),
        }
        return self.columns

    def found(self, program: Program, policy: Policy, rollout: Rollout) -> None:
        """Note the program that serves, and that it serves until the moment (core.looking) is over."""
        self.program, self.moment = program, None
        if (now := moment()) is not None:
            before, again = self._lie(), self.columns
            self.look(policy, rollout)
            self.moment = now if self._lie() == before else None  # copies would hold this rollout, and not the next
            del again

    def _lie(self) -> list[int]:
        """Addresses of the columns."""
        return [x.data_ptr() for _, x in named_tensors(self.columns)]

    def serves_still(self) -> bool:
        """Tell whether nothing can have changed since found(). Counts the program's call if so."""
        now = moment()
        return now is not None and now is self.moment and count_again([self.program])

    def process(self, iteration: int) -> None:
        """Write advantages, returns, the order of rows and shares."""
        self.call.slots[self.counter] = iteration
        self.call()


_updates: Bound[_Update | None] = Bound()


def serves(algorithm: OnPolicy[Any], rollout: Rollout) -> bool:
    """Tell whether this is PPO's update of a policy and a loss that has a program."""
    if not isinstance(algorithm, PPO) or is_adaptive(algorithm.config) or algorithm.policy.sequence_length > 1:
        return False
    if algorithm.intrinsic is not None:
        return False
    if size_of(algorithm.reduce) > 1 or "advantage" in rollout.columns or rollout.device.type != "cpu":
        return False
    kind, own = type(algorithm), vars(algorithm)
    if any(name in own or getattr(kind, name) is not getattr(PPO, name) for name in STEPS):
        return False
    read = (rollout.reward, rollout.value, rollout.valid, rollout.terminated, rollout.truncated)
    update = _updates.get(lambda: _made(algorithm, rollout), rollout, algorithm.config, algorithm.seed, *read)
    if update is None:
        return False
    if update.serves_still():
        return True
    columns, loss = update.look(algorithm.policy, rollout), algorithm.loss or ppo_loss
    given = (columns, update.order, update.number, algorithm.config)
    if compiled_learning.serves(loss, algorithm.policy, algorithm.optimizer, *given) is not True:
        return False
    program = compiled_learning.last(loss, algorithm.policy, update.order, update.number)
    if not isinstance(program.code, CpuProgram):
        return False
    update.found(program, algorithm.policy, rollout)
    return True


def _made(algorithm: PPO, rollout: Rollout) -> _Update | None:
    """Make the update of a rollout. None where the call cannot read the rollout's memory."""
    if not _fit(algorithm, rollout):
        return None
    made = _Update(algorithm, rollout)
    made.process(algorithm.iteration)  # the loss is compared with the plain one on these numbers
    return made


def _fit(algorithm: PPO, rollout: Rollout) -> bool:
    """Tell whether the call can read all that advantages, returns and the order of rows depend on."""
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
    """headrace.algorithms.on_policy.process_and_learn of PPO, within rounding."""
    update = _updates.last(rollout)
    assert update is not None, "which serves() sees"
    config = algorithm.config
    update.process(algorithm.iteration)
    limit = (KL, 1.5 * config.target_kl) if config.target_kl else None
    given = (update.columns, update.order, update.shares, update.number, config, limit)
    learner, done = compiled_learning.learned(update.program, algorithm.policy, algorithm.optimizer, *given)
    metrics = learner.means(done, {KL: update.number})
    return metrics | {"explained_variance": update.fraction[0].clone()}, update.returns
