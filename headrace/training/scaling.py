"""Settings that a training begins with: those registered for an environment, or defaults for environments in Python,
and changes that follow from the number of environments. Each algorithm has its own rule for these: see
PPOConfig.scaled.

The defaults of algorithms are for compiled environments, of which 64 cost little more than one. In Python each step of
an environment costs the same, so more environments only make rollouts larger, and updates fewer: PPO's defaults take 24
updates in 200,000 steps. So environments in Python have rollouts of 2,048 steps, as in the PPO paper, or of 1,024 for
images, and fewer if total_steps is small. The cost of a step decides only the number of workers (tuning.auto). Workers
change nothing but the speed, so that a seed gives the same results on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from math import ceil, log2, sqrt
from typing import Any

from headrace import envs
from headrace.algorithms.base import OFFLINE
from headrace.core.cores import cores
from headrace.core.setting_types import fit
from headrace.core.types import Settings
from headrace.envs.simulators.by_library import published
from headrace.envs.simulators.published import Published
from headrace.envs.sources import MUJOCO, is_kernel
from headrace.training.config import TrainConfig, merge_settings

NUM_ENVS = 8  # one process takes as many steps/s with them as with one, and a rollout has several episodes
# of a rollout: Schulman et al. 2017 (arXiv:1707.06347), tables 3 and 5
MOST_ROWS, IMAGE_ROWS, LEAST_ROWS = 2048, 1024, 512
UPDATES = 100  # least number of updates of a training, unless rollouts would be shorter than LEAST_ROWS
BATCH_SIZE = 128  # nearly as in Fujimoto et al. 2018 (arXiv:1802.09477): as many gradient steps in half the time
# of deterministic policies: observations as they are, as in the same paper, and critics whose first values are small
# (docs/td3.md)
DETERMINISTIC: Settings = {
    "batch_size": BATCH_SIZE,
    "invert_gradients": True,
    "normalize_observation": False,
    "critic_init_scale": 0.4,
}
OF_SAC: Settings = {"batch_size": BATCH_SIZE, "learning_rate": 1e-3}
LEARNING: Mapping[str, Settings] = {
    "ppo": {"epochs": 10, "minibatch_size": 64},  # Schulman et al. 2017, table 3; its defaults are for larger rollouts
    **dict.fromkeys(("sac", "hybrid_sac"), OF_SAC),
    **dict.fromkeys(("td3", "ddpg"), DETERMINISTIC),
}
ROLLOUTS = ("ppo", "trpo")  # algorithms that learn from such long rollouts
# settings for images: PPO and DQN as in rl-baselines3-zoo for Atari; the replay buffer of Yarats et al. 2021
# (arXiv:2004.13649), since a million images do not fit into memory
FEWER_IMAGES: Settings = {"buffer_size": 100_000}
OF_DQN: Settings = {"batch_size": 32, "learning_rate": 1e-4}
OF_IMAGES: Mapping[str, Settings] = {
    "ppo": {"epochs": 4, "minibatch_size": 256, "learning_rate": 2.5e-4},
    **dict.fromkeys(("dqn", "qrdqn", "c51", "discrete_sac"), OF_DQN),
    **dict.fromkeys(("sac", "hybrid_sac", "tqc", "crossq", "td3", "ddpg"), FEWER_IMAGES),
}
# random actions before a deterministic policy learns, as rl-baselines3-zoo has them for MuJoCo: with 1,000 of them TD3
# learned less on Hopper (docs/scaling.md)
MOST_RANDOM, LEAST_RANDOM, SHARE_RANDOM = 10_000, 1_000, 0.1  # steps, steps, fraction of total_steps
# of recurrent policies: steps of a sequence, and sequences of a minibatch. Rows of one sequence resemble each other,
# and many short sequences are learned from faster than few long ones
LENGTH, SEQUENCES, FEWEST_SEQUENCES = 16, 8, 4
ONE_BY_ONE = ("auto", "inline", "workers")


def settings_for(source: envs.Source, algorithm: str, given: Settings) -> Settings:
    """Settings for training on an environment: the registered ones, or those of unregistered().

    algorithm: its name. given: settings given by the user, from which others follow.
    """
    if (theirs := by_their_library(source, algorithm, given)) is not None:
        return theirs.settings
    registered = {} if algorithm in OFFLINE else envs.spec(source).defaults.get(algorithm)
    if registered is not None or not _one_by_one(source, given.get("backend", "auto")):
        return registered or {}
    return unregistered(algorithm, given)


def by_their_library(source: envs.Source, algorithm: str, given: Settings) -> Published | None:
    """PPO's settings for a simulator's task, as its library publishes them; None for everything else."""
    if algorithm != "ppo" or not isinstance(source, str):
        return None
    num_envs = given.get("num_envs")
    return published(source, num_envs if isinstance(num_envs, int) and num_envs > 0 else None)


def unregistered(algorithm: str, given: Settings, images: bool = False) -> Settings:
    """Settings for an environment in Python for which none are registered.

    images: whether observations are images for the Nature network; known once the environment has been made.
    """
    processes = max(_at_most(given.get(name)) for name in ("workers", "actors", "learners"))
    num_envs = ceil(NUM_ENVS / processes) * processes  # so that each process has the same number
    found: dict[str, Any] = {"num_envs": num_envs}
    total = fit("total_steps", given.get("total_steps", TrainConfig.total_steps), int | None)
    if LEARNING.get(algorithm) is DETERMINISTIC:
        share = MOST_RANDOM if total is None else int(SHARE_RANDOM * total)
        found["learning_starts"] = min(MOST_RANDOM, max(LEAST_RANDOM, share))
    if algorithm in ROLLOUTS:
        most = IMAGE_ROWS if images else MOST_ROWS
        rows = most if total is None else min(most, 2 ** int(log2(max(total / UPDATES, LEAST_ROWS))))
        found["num_steps"] = max(1, rows // num_envs)
    found |= LEARNING.get(algorithm, {})
    return found | {**OF_IMAGES.get(algorithm, {}), "precision": "auto"} if images else found


def _one_by_one(source: envs.Source, backend: str) -> bool:
    """Tell whether environments are stepped one by one, or are a vector that Gymnasium also has singly."""
    if backend not in ONE_BY_ONE:
        return False
    if isinstance(source, str) and source.startswith(MUJOCO):
        return True
    compiled = is_kernel(envs.entry_of(source)) and backend == "auto"
    return not compiled and not envs.comes_as_vector(source)


def _at_most(processes: Any) -> int:
    """Largest number of environments. Wrong settings are refused elsewhere."""
    return cores() if processes == "auto" else processes if isinstance(processes, int) and processes > 0 else 1


def derived(algorithm_config: type | None, defaults: Settings, given: Settings, singly: bool = False) -> Settings:
    """Settings that replace an environment's `defaults`, which were chosen for the num_envs among them. Defaults
    without num_envs are for TrainConfig's, and change only for more environments.

    given: settings given by the user, which are never replaced. singly: see PPOConfig.scaled. Of recurrent policies,
    rollouts and batches are of whole sequences. Nothing else follows if num_envs is not among `given`, or is the same;
    with scale=False; and for an algorithm without a rule. Raises TypeError, ValueError as merge_settings() does.
    """
    whole = _whole_sequences(algorithm_config, defaults, given)
    if not hasattr(algorithm_config, "scaled"):
        return whole
    if "sequence_length" in whole:
        given = {**given, **whole}
    else:
        defaults = {**defaults, **whole}
    base_run, base = merge_settings(algorithm_config, defaults, {}, {})
    run, asked = merge_settings(algorithm_config, defaults, {}, given)
    growth = run.num_envs / base_run.num_envs
    if growth == 1 or not run.scale or (growth < 1 and "num_envs" not in defaults):
        return whole
    fixed = {name: value for name, value in asdict(asked).items() if name in given}
    fitting = asdict(base.scaled(base_run.num_envs, run.num_envs, singly, **fixed))
    values = {name: value for name, value in fitting.items() if value != getattr(base, name)}
    if growth > 1 and not base_run.stagger and not _without_stagger(run):
        values["stagger"] = True
    rows = growth * fitting["num_steps"] / base.num_steps
    if rows > 1 and run.total_steps is not None:
        values["total_steps"] = round(run.total_steps * rows)  # as many iterations as before
    return {**whole, **{name: value for name, value in values.items() if name not in given}}


def _without_stagger(run: TrainConfig) -> bool:
    """Tell whether settings refuse a stagger, which then does not follow from num_envs."""
    return run.self_play or run.drop_slowest > 0 or (run.learners > 1 and run.actors is not None)


def _whole_sequences(algorithm_config: Any, defaults: Settings, given: Settings) -> Settings:
    """Rollouts, or batches from a replay buffer, of whole sequences, where the user gave one of num_steps (batch_size)
    and sequence_length: the former is rounded up, and the latter becomes the divisor nearest to what it was."""
    known = {**{field.name: field.default for field in fields(algorithm_config or TrainConfig)}, **defaults, **given}
    name = "batch_size" if "batch_size" in known else "num_steps"
    rows, length = known.get(name), known.get("sequence_length")
    if not (isinstance(rows, int) and isinstance(length, int) and min(rows, length) > 0) or rows % length == 0:
        return {}
    if known.get("recurrent") == "none" or {name, "sequence_length"} <= given.keys() or not known.get("scale", True):
        return {}
    return {"sequence_length": _divisor(rows, length)} if name in given else {name: rows + -rows % length}


def _divisor(number: int, wanted: int) -> int:
    """Find the divisor of a number that is nearest, as a ratio, to the wanted one."""
    wanted = max(wanted, 1)
    divisors = (k for k in range(1, number + 1) if number % k == 0)
    return min(divisors, key=lambda k: max(k / wanted, wanted / k))


def of_sequences(config: TrainConfig, algorithm_config: Any, given: Settings) -> Settings:
    """Settings for minibatches of SEQUENCES sequences, if the policy is recurrent and the rollout is large enough.
    `given` settings stay, and the others follow: sequences are cut such that a given minibatch_size has
    FEWEST_SEQUENCES. Empty with scale=False, and for an algorithm without minibatches. See docs/algorithms.md."""
    own = algorithm_config
    if getattr(own, "recurrent", "none") == "none" or not config.scale:
        return {}
    if (batch := getattr(own, "batch_size", 0)) and "batch_size" not in given:  # of all that a replay buffer holds
        least = FEWEST_SEQUENCES * own.sequence_length
        return {"batch_size": least} if batch < least else {}
    if not (rows := getattr(own, "minibatch_size", 0)):
        return {}
    rollout, found = config.num_envs * own.num_steps, dict[str, Any]()
    length = own.sequence_length or own.num_steps
    if not own.sequence_length and "sequence_length" not in given:
        most = min(rollout, rows) if "minibatch_size" in given else rollout
        length = _divisor(own.num_steps, max(min(rollout, rows) // SEQUENCES, min(LENGTH, most // FEWEST_SEQUENCES)))
        found["sequence_length"] = length
    if "minibatch_size" not in given and (fitting := min(SEQUENCES * length, rollout)) > rows:
        found["minibatch_size"] = fitting
        if "learning_rate" not in given:
            found["learning_rate"] = own.learning_rate * sqrt(fitting / rows)  # as in PPOConfig.scaled
    return found


def of_asynchronous(config: TrainConfig, algorithm_config: Any, given: Settings) -> Settings:
    """The learning rate if each of K actors' gradients is an update of its own, computed from 1 / K of the rows:
    divided by sqrt(K), as for smaller minibatches. Empty if it is among the `given` settings, and with scale=False.

    With the learning rate of one process, A2C on CartPole collapsed in 4 of 12 trainings with 4 actors
    (docs/parallel.md)."""
    asynchronous = config.exchange == "gradients" and config.collection == "async"
    actors = config.actors if isinstance(config.actors, int) and asynchronous else 1
    if actors == 1 or not config.scale or "learning_rate" in given or not hasattr(algorithm_config, "learning_rate"):
        return {}
    return {"learning_rate": algorithm_config.learning_rate / sqrt(actors)}


def of_lag(config: TrainConfig, algorithm_config: Any, given: Settings) -> Settings:
    """Shorter rollouts if actors collect with an older policy. Empty if num_steps is among the `given` settings, with
    scale=False, and for an algorithm without a rule. See PPOConfig.lagging.

    With rollouts as long as in one process PPO and APPO took 1.4 to 1.7 times the steps (docs/parallel.md)."""
    lag = config.largest_lag
    if not lag or not config.scale or "num_steps" in given or not hasattr(algorithm_config, "lagging"):
        return {}
    num_steps = algorithm_config.lagging(config.num_envs, lag).num_steps
    return {"num_steps": num_steps} if num_steps != algorithm_config.num_steps else {}


FOLLOWING = (of_asynchronous, of_lag, of_sequences)  # rules of settings that follow from others than num_envs


def scaling_message(config: TrainConfig, settings: Settings) -> str:
    """A message with the settings that follow from the numbers of environments and asynchronous actors, and the lag."""
    parts = [f"{name} {_number(value)}" for name, value in settings.items()]
    actors = f" of {config.actors} asynchronous actors" if config.exchange == "gradients" else ""
    if lag := config.largest_lag:
        actors = f", collected by a policy up to {lag} update{'s' * (lag > 1)} older"
    actors += " and a recurrent policy" if "sequence_length" in settings else ""
    return f"for {config.num_envs:,} envs{actors}: {', '.join(parts)} (--no-scale keeps the settings as they were)"


def registered_message(
    env: str, settings: Settings, assumed: bool = False, published: str = "", facts: Sequence[str] = ()
) -> str:
    """A message with the settings registered for an environment. assumed: none are registered, and these are used
    instead. facts: facts that some of them follow from. published: who published them, if not tuned here."""
    parts = [f"{name} {_number(value)}" for name, value in settings.items()]
    chosen = f"{env} has no tuned settings, taken for an environment stepped in Python"
    known = (chosen if assumed else f"registered for {env}",)
    where = ", ".join((*known, *facts))
    where += f", as published by {published} and not tuned here" if published else ""
    return f"{where}: {', '.join(parts)} (--no-registered takes the algorithm's defaults)"


def _number(value: Any) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, list | tuple):
        return "x".join(map(str, value))
    if isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
