"""When off-policy algorithms learn within their rollouts, where the user has not chosen."""

from __future__ import annotations

from dataclasses import replace

from headrace.algorithms.config_bases import EpsilonGreedyConfig, OffPolicyConfig, fits_utd_ratio
from headrace.core.terminal import tell
from headrace.envs.base import Env
from headrace.envs.compiled.env import CompiledEnv
from headrace.parallel.actor_env import ActorEnv
from headrace.parallel.placement import Placement
from headrace.training.config import TrainConfig
from headrace.training.plan import TrainPlan

ROWS = 64  # of a rollout, of all environments together, within which an off-policy algorithm learns by default
FEW_ROWS = 8  # of a rollout, up to which what is done once a rollout takes longer than learning with a small network
MOST_STEPS = 1_000  # of a rollout that is made longer, for gradient steps by utd_ratio


def with_whole_gradient_steps(plan: TrainPlan, env: Env, config: TrainConfig) -> TrainPlan:
    """The plan, with rollouts so long that utd_ratio makes whole gradient steps of them: utd_ratio=0.25 of one
    environment is a gradient step every 4 steps. Rollouts that the user chose stay: there OffPolicy.prepare() says what
    the ratio is."""
    own = plan.algorithm_config
    if not isinstance(own, OffPolicyConfig) or plan.rollout_given or own.train_freq or env.num_agents > 1:
        return plan
    total = config.num_envs if config.learners > 1 else env.num_envs
    for times in range(1, MOST_STEPS // own.num_steps + 1):
        if fits_utd_ratio(own, own.num_steps * times * total):
            return replace(plan, algorithm_config=replace(own, num_steps=own.num_steps * times))
    return plan


def learning_within_rollouts(plan: TrainPlan, env: Env, config: TrainConfig, placement: Placement) -> TrainPlan:
    """The plan, in which an off-policy algorithm with short rollouts learns as often, but within longer ones: acting,
    compiled environments, the replay buffer and learning are one call for all steps of a rollout then. Only where
    nothing is updated once a rollout, so that the bits are the same. Other environments may be slow, and a rollout that
    learns is not given up: there the faster settings are said."""
    own = plan.algorithm_config
    if not isinstance(own, OffPolicyConfig) or plan.rollout_given or own.train_freq or own.gradient_steps:
        return plan
    if own.hindsight:  # whose minibatches are drawn in torch
        return plan
    rows = own.num_steps * env.num_envs
    one_process = not isinstance(env, ActorEnv) and not placement.apart and placement.learn.type == "cpu"
    one_sum = config.collection == "sync" and max(config.learners, config.shards or 1) == 1
    if not one_process or not one_sum or env.num_agents > 1 or 2 * rows > ROWS:
        return plan
    longer = replace(own, num_steps=own.num_steps * -(-ROWS // rows), train_freq=own.num_steps)
    once_a_rollout = own.normalize_observation or own.schedule != "constant" or isinstance(own, EpsilonGreedyConfig)
    if isinstance(env, CompiledEnv) and not once_a_rollout:
        return replace(plan, algorithm_config=longer)
    if rows <= FEW_ROWS:
        tell(
            f"{plan.algorithm} learns after every {rows} steps: where a step takes less than a millisecond, "
            f"num_steps={longer.num_steps} and train_freq={longer.train_freq} learn as often in less time"
        )
    return plan
