"""Arguments of the kernel of SAC's, TQC's, TD3's and DDPG's learning calls
(headrace.kernels.off_policy.off_policy_actor_critic)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# indices in OffPolicyArguments.numbers, float32; scales take three each (adam_step.scales)
ACTOR_SCALE, CRITICS_SCALE, TAU, ACTOR_TAU, TEMPERATURE, ACTOR_EPS, CRITICS_EPS, INVERT = (
    np.uint64(i) for i in (0, 3, 6, 7, 8, 9, 10, 11)
)
TASK, BATCH, KEPT = (np.uint64(i) for i in range(3))  # indices in OffPolicyArguments.task
METRICS = 4  # of each gradient step: actor's loss, critics' loss, temperature, temperature's loss


class Weights(NamedTuple):
    """A network's parameters, Adam's moments, and the parameters of its target network; float32 [P].

    packed, packed_target: float32, the packed factors of parameters and of target (see layer_table.PACKED).
    """

    parameters: np.ndarray
    mean: np.ndarray
    square: np.ndarray
    target: np.ndarray
    packed: np.ndarray
    packed_target: np.ndarray


class Batches(NamedTuple):
    """G batches of B blocks of 64 samples, float32 and flat; F numbers of an observation, K of an action.

    observation, next_observation [G, B, F, 64]: encoded. action [G, B, K, 64]: normalised. reward, discount,
    loss_weight [G, B, 64]: loss_weight is 1 / number of valid samples, or 0. normal [G, 2 B, K, 64]: noise on the next
    actions, and (SAC) on the actions at `observation`.
    """

    observation: np.ndarray
    next_observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    loss_weight: np.ndarray
    normal: np.ndarray


class OffPolicyArguments(NamedTuple):
    """What stays from call to call, and buffers.

    stochastic: 1 for SAC and TQC. tiled: 1 where AMX tiles multiply some layers. quantiles: outputs of a critic, 1
    where that is a value. actor: its layer table; critics: uint64 [C, L, columns], theirs. actor_chunks, critic_chunks:
    see stepwise_layout.weight_chunks. scratch: float32 [B, *], a row for each block; the actor's inputs lie at 0, its
    actions behind them, and from `extra_rows` on rows of 64: noise, unclamped (K each), log_prob, the critics' outputs.
    gradient_scratch: float32, a row for each worker. sums: float32 [C * B + B, 16], losses. numbers: float32 [16], see
    above. task: int64 [8]: task, batch, how many of the target critics' quantiles are kept.
    """

    stochastic: np.uint64
    tiled: np.uint64
    blocks: np.uint64
    features: np.uint64
    actions: np.uint64
    quantiles: np.uint64
    extra_rows: np.uint64
    actor: np.ndarray
    critics: np.ndarray
    actor_chunks: np.ndarray
    critic_chunks: np.ndarray
    actor_weights: Weights
    critic_weights: Weights
    batches: Batches
    scratch: np.ndarray
    gradient_scratch: np.ndarray
    sums: np.ndarray
    numbers: np.ndarray
    task: np.ndarray


class Settings(NamedTuple):
    """Of a call, CrossQ's too; numbers are float64. delay: gradient steps from one actor step to the next; since: those
    done before. steps: Adam's steps of actor, critics and temperature before this call; rates: their learning rates.
    invert_gradients: 1 where TD3Config.invert_gradients is set. kept: TQC's quantiles in the targets, of those of all
    target critics together. actor_beta, critics_beta: Adam's first, in CrossQ; the other kernel has adam_step.BETA1."""

    delay: int = 1
    since: int = 0
    tau: float = 0.0
    actor_steps: float = 0.0
    critics_steps: float = 0.0
    temperature_steps: float = 0.0
    actor_rate: float = 0.0
    critics_rate: float = 0.0
    temperature_rate: float = 0.0
    target_entropy: float = 0.0
    learn_temperature: int = 0
    temperature_eps: float = 0.0
    invert_gradients: int = 0
    kept: int = 0
    actor_beta: float = 0.0
    critics_beta: float = 0.0
