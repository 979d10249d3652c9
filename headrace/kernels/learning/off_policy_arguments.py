"""What the kernel of SAC's, TD3's and DDPG's learning calls is handed (kernels.learning.off_policy_actor_critic)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# places in Job.numbers, float32; scales take three each (adam_cpu.scales)
ACTOR_SCALE, CRITICS_SCALE, TAU, ACTOR_TAU, TEMPERATURE, ACTOR_EPS, CRITICS_EPS = (
    np.uint64(i) for i in (0, 3, 6, 7, 8, 9, 10)
)
METRICS = 4  # of each gradient step: actor's loss, critics' loss, temperature, temperature's loss


class Weights(NamedTuple):
    """A network's parameters, Adam's moments, and the parameters of the target that follows; float32 [P].

    words, target_words: float32, room for factors of parameters and of target (see chain_tables.WORDS).
    """

    parameters: np.ndarray
    mean: np.ndarray
    square: np.ndarray
    target: np.ndarray
    words: np.ndarray
    target_words: np.ndarray


class Batches(NamedTuple):
    """G batches of B blocks of 64 samples, float32 and flat; F numbers of an observation, K of an action.

    now, later [G, B, F, 64]: encoded observations. action [G, B, K, 64]: normalised. reward, discount, share
    [G, B, 64]: share is 1 / number of samples that count, or 0. normal [G, 2 B, K, 64]: noise on the next actions, and
    (SAC) on those of now.
    """

    now: np.ndarray
    later: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    share: np.ndarray
    normal: np.ndarray


class Job(NamedTuple):
    """All that stays, and room for what does not.

    stochastic: 1 for SAC. tiled: 1 where tiles multiply some layers. actor: its chain; critics: uint64 [C, L, 16],
    theirs. actor_pieces, critic_pieces: see chain_tables.pieces. scratch: float32 [B + workers, *], a row for each
    block, then for each worker; inputs lie at 0, the action behind the observation, and from `aside` on rows of 64:
    spread, free (K each), log_prob, aim. room: float32, a row for each worker. sums: float32 [C * B + B, 16], losses.
    numbers: float32 [16], see above. task: int64 [8]: task, batch.
    """

    stochastic: np.uint64
    tiled: np.uint64
    blocks: np.uint64
    features: np.uint64
    actions: np.uint64
    aside: np.uint64
    actor: np.ndarray
    critics: np.ndarray
    actor_pieces: np.ndarray
    critic_pieces: np.ndarray
    actor_weights: Weights
    critic_weights: Weights
    batches: Batches
    scratch: np.ndarray
    room: np.ndarray
    sums: np.ndarray
    numbers: np.ndarray
    task: np.ndarray


class Settings(NamedTuple):
    """Of a call; float64. steps: of Adam for actor, critics and temperature before; rates: theirs."""

    delay: int
    since: int
    tau: float
    actor_steps: float
    critics_steps: float
    temperature_steps: float
    actor_rate: float
    critics_rate: float
    temperature_rate: float
    target_entropy: float
    learn_temperature: int
    temperature_eps: float
