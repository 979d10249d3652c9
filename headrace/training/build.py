"""Make the parts of a training from its plan: devices, environments, algorithm, collector."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from headrace import envs
from headrace.agent_groups.group_algorithm import Grouped
from headrace.agent_groups.group_policy import check_spaces
from headrace.algorithms.base import Algorithm, algorithm_classes, is_offline
from headrace.algorithms.config_bases import EpsilonGreedyConfig, OffPolicyConfig, fits_utd_ratio
from headrace.algorithms.reduce import one_learner, size_of
from headrace.core.cores import cores
from headrace.core.device import torch_threads
from headrace.core.packages import require
from headrace.core.precision import of_copy, resolve
from headrace.core.terminal import tell
from headrace.core.timer import Timer
from headrace.data.spaces import Space
from headrace.envs.base import AsyncEnv, Env
from headrace.envs.compiled.env import CompiledEnv
from headrace.envs.goals import goals_of
from headrace.envs.parts import part_maker
from headrace.envs.sources import is_kernel
from headrace.envs.wrappers.conditioning import informed
from headrace.parallel.actor import Acting, Part
from headrace.parallel.actor_env import ActorEnv, Executor, Job, MakePart
from headrace.parallel.apart_collector import ApartCollector
from headrace.parallel.collection_modes import make_collector
from headrace.parallel.collector import Collector, InlineCollector
from headrace.parallel.cuda.cuda_graphs import GraphedIteration, GraphedParts
from headrace.parallel.gradient_actor import GradientActing
from headrace.parallel.gradients import GradientActors
from headrace.parallel.learning_collector import LearningCollector
from headrace.parallel.placement import Placement, hidden_weights
from headrace.parallel.stagger import Stagger
from headrace.policies.base import Policy
from headrace.policies.convolutions import is_for_nature, shares_threads
from headrace.setting_schedules import following
from headrace.training import multi_agent
from headrace.training.combinations import check_lag, say_unused_by_spaces
from headrace.training.config import WRAPPING, TrainConfig
from headrace.training.episodes import info_columns
from headrace.training.multi_agent import MakePolicy
from headrace.training.plan import TrainPlan, making, of_env, of_images, options_of, saved_settings, stepped_by
from headrace.training.ranks import Ranks
from headrace.training.replay_order import replay_order
from headrace.training.shards import Sharded

ROWS = 64  # rows of a rollout, over all environments, within which an off-policy algorithm learns by default
FEW_ROWS = 8  # rows of a rollout up to which work per rollout takes longer than learning with a small network
MOST_STEPS = 1_000  # of a rollout that is lengthened for whole gradient steps by utd_ratio
ON_NODE = torch.device("cuda", 0)  # the GPU that Ray gives an actor is the only one that its process sees


@dataclass(frozen=True)
class Parts:
    """The parts of a Trainer."""

    plan: TrainPlan  # with settings that follow from the observations
    config: TrainConfig  # the plan's, with choices made while building
    placement: Placement
    env: Env
    algorithm: Algorithm
    collector: Collector
    stagger: Stagger
    timer: Timer
    graph: GraphedIteration | None  # replays iterations from a CUDA graph

    @property
    def learner(self) -> Algorithm | GradientActors:
        """The object with update(): the algorithm, or the collector that sums the actors' gradients."""
        return self.collector if isinstance(self.collector, GradientActors) else self.algorithm


def _placement(plan: TrainPlan, ranks: Ranks | None) -> Placement:
    """The devices of a training, or of one of several learners. Raises ValueError for one that this machine lacks."""
    asked: Any = plan.config.device if plan.ready_env is None else plan.ready_env.device
    if ranks is not None:
        asked = ranks.device
    config = plan.config
    if on_node := config.cluster is not None and config.collect_device == "cuda":
        collect: str | None = "cpu"  # this machine need not have a GPU
    else:
        collect = config.collect_device or (None if config.actors is None else "cpu")
        collect = str(asked) if ranks is not None and collect == "cuda" else collect
    placement = Placement.on(asked, _num_weights(plan), config.eval_device, collect)
    return replace(placement, collect=ON_NODE) if on_node else placement


def build(plan: TrainPlan, stack: ExitStack, ranks: Ranks | None = None) -> Parts:
    """Make the parts of a training. Everything that has to be closed is pushed on the stack, even if this fails.

    ranks: with several learners, the one that has these parts. Raises TypeError, ValueError for settings that do not
    fit the environment or the algorithm.
    """
    placement = _placement(plan, ranks)
    if ranks is not None and placement.learn.type == "cuda":
        torch.cuda.set_device(placement.learn)  # keeps this process off other learners' GPUs
    used = (placement.learn, placement.collect) if plan.config.cluster is None else (placement.learn,)
    for device in dict.fromkeys(used):
        if device.type == "cuda":
            from headrace.checks import parity

            parity.offer_kernels(device)
    made, config = _environment(plan, placement, ranks)
    if plan.ready_env is None:
        stack.callback(made.close)
    env = multi_agent.wrapped(informed(made, plan.agent_info), config)
    if placement.learn.type == "cpu":
        plan.compile_ahead(env)
    if plan.assumed and any(is_for_nature(observed) for observed, _ in env.spaces.values()):
        plan = of_images(replace(plan, config=config))
        config = plan.config
    chosen = plan = of_env(plan, env)
    config = replace(config, stagger=plan.config.stagger)
    say_unused_by_spaces(plan.algorithm_config, env)
    plan = _with_whole_gradient_steps(plan, env, config)
    plan = _learning_within_rollouts(plan, env, config, placement)
    algorithm = _divided(_algorithm(plan, env, placement.learn, stack), env, config, ranks)
    if config.self_play:
        env.join(algorithm.policy)  # type: ignore[attr-defined]
    config = replace(config, precision=resolve(config.precision, algorithm.policy, placement.learn))
    config = replace(config, threads=_threads(plan, config, algorithm.policy, placement))
    check_lag(config, algorithm)
    if config.advantages == "actor" and isinstance(algorithm, Grouped):
        raise ValueError("advantages='actor' is for agents of one group: leave it out, or give them one policy")
    timer = Timer()
    order = config.replay_order
    again = None if order is None else replay_order(order, saved_settings(plan, config, algorithm.config, None))
    overlapped = config.collection == "overlapped" and not isinstance(env, ActorEnv)
    apart = overlapped or (placement.apart and not isinstance(env, ActorEnv))
    collector = make_collector(
        *(config.collection, config.drop_slowest, env, algorithm.policy, algorithm.num_steps),
        algorithm.columns() | info_columns(config, plan.source, env),
        config.seed,
        timer,
        max_policy_lag=config.max_policy_lag,
        stagger=config.stagger,
        replay=again,
        precision=config.precision,
        learner=algorithm if config.exchange == "gradients" else None,
        process=algorithm if config.advantages == "actor" else None,
        train=algorithm if is_offline(algorithm) or getattr(algorithm.config, "train_freq", False) else None,
    )
    stagger = _stagger(config, env, algorithm, collector, apart)
    if apart:
        assert isinstance(collector, InlineCollector)
        max_steps, precision = env.max_steps if config.stagger else None, of_copy(config.precision, env.device)
        collector = ApartCollector(collector, placement.learn, max_steps, precision, overlapped)
    stack.callback(collector.close)
    graph = _graph(config, env, algorithm, collector)
    if graph is not None:
        stack.callback(graph.close)  # before several learners leave the group whose sums it has
    return Parts(chosen, config, placement, env, algorithm, collector, stagger, timer, graph)


def _num_weights(plan: TrainPlan) -> int:
    """Number of weights that will learn: an existing policy's, else those between the hidden layers to be made."""
    if not isinstance(plan.algorithm, str):
        return sum(parameter.numel() for parameter in plan.algorithm.policy.parameters())
    return hidden_weights(getattr(plan.algorithm_config, "hidden", ()))


def _environment(plan: TrainPlan, placement: Placement, ranks: Ranks | None) -> tuple[Env, TrainConfig]:
    """Make the environments. Returns them, and the config with the number of environments and workers."""
    config, env = plan.config, plan.ready_env
    if env is None and config.actors is not None:
        env = actor_env(plan, placement, ranks)
        return env, replace(config, actors=len(env.parts) * config.learners)
    if env is None and ranks is not None:
        if placement.collect.type == "cpu":
            return _part_maker(plan)(ranks.part.size, ranks.part.first), config
        return _made(plan, config.backend, placement, ranks.part), config
    if env is None:
        env = _made(plan, config.backend, placement)
        workers = len(env.parts) if isinstance(env, AsyncEnv) and env.backend == "workers" else 0
        return env, replace(config, workers=workers or None)  # a resumed run has as many
    copies = env.num_copies
    if plan.num_envs not in (None, copies):
        raise ValueError(f"num_envs is {plan.num_envs}, and the environments you made are {copies}")
    return env, replace(config, num_envs=copies)


def _part_maker(plan: TrainPlan) -> MakePart:
    """A function that makes some of the environments in another process."""
    config = plan.config
    assert plan.source is not None
    options = {name: getattr(config, name) for name in (*WRAPPING, "reward_scale", "backend", "on_error", "group_by")}
    make_part = part_maker(plan.source, **making(config), **options)  # type: ignore[arg-type]
    return partial(multi_agent.central_part, make_part) if config.central_critic else make_part


def _after(make_part: MakePart, first: int, number: int, place: int) -> Env:
    """Environments of a part that begins at `first`."""
    return make_part(number, first + place)


def actor_env(plan: TrainPlan, placement: Placement, ranks: Ranks | None = None) -> ActorEnv:
    """Make the environments of actors. ranks: with several learners, the one that has them."""
    config, make_part = plan.config, _part_maker(plan)
    assert isinstance(config.actors, int)  # headrace.tuning.auto has replaced "auto"
    number, actors = config.num_envs, config.actors
    if ranks is not None:
        make_part = partial(_after, make_part, ranks.part.first)
        number, actors = ranks.part.size, actors // ranks.size
    return ActorEnv(
        make_part,
        number,
        plan.borrowed or actors,
        on_error=config.on_error,
        step_timeout=config.step_timeout,
        device=placement.learn,
        collect_device=placement.collect,
        role=GradientActing if config.exchange == "gradients" else Acting,
        executor=_executor(config),
    )


def _executor(config: TrainConfig) -> Callable[[ActorEnv, Job], Executor] | None:
    """A function that makes an Executor on a cluster; None for processes of this machine."""
    if config.cluster is None:
        return None
    require("ray", "cluster needs Ray: pip install 'headrace[ray]'")
    from headrace.parallel.cluster.cluster_executor import ClusterExecutor
    from headrace.parallel.cluster.connection import Settings

    return partial(ClusterExecutor, Settings(config.cluster, config.cluster_open))


def _made(plan: TrainPlan, backend: str, placement: Placement, part: Part | None = None) -> Env:
    """Make the environments, or a part of them. If this machine's CUDA kernel fails its check, torch steps them."""
    number, first = (plan.config.num_envs, 0) if part is None else (part.size, part.first)
    source, options, line = stepped_by(plan, number) if part is None else (plan.source, options_of(plan.config), "")
    if line:
        tell(line)
    options |= {"workers": plan.borrowed or plan.config.workers, "first_env": first}
    assert source is not None
    env = envs.make(source, number, backend=backend, device=placement.collect, **options)
    if source != plan.source:
        env.name = envs.spec(plan.source).name  # type: ignore[arg-type]
    if env.backend != "cuda":
        return env
    from headrace.checks import parity

    return parity.trusted(env, lambda: _made(plan, "torch", placement, part))


def _algorithm(plan: TrainPlan, env: Env, device: torch.device, stack: ExitStack) -> Algorithm:
    if not isinstance(plan.algorithm, str):
        check_spaces(plan.algorithm.policy, env.spaces, env.name)
        return plan.algorithm
    kind = algorithm_classes(plan.algorithm).algorithm
    multi_agent.check_actions(plan.algorithm, env)
    with torch_threads(1):  # several are slower for such small matrices, and give other bits
        first = _first_policy(plan, kind)
        algorithm = multi_agent.build(kind, plan.algorithm_config, env, plan.config.seed, device, first)
    if getattr(plan.algorithm_config, "hindsight", 0):
        _set_goals(algorithm, plan, env, stack)
    return algorithm


def _first_policy(plan: TrainPlan, kind: type[Algorithm]) -> MakePolicy | None:
    """A function that makes the policy from its spaces and a seed; None for the algorithm's usual new policy.

    Raises TypeError where the algorithm cannot use it.
    """
    config, run = plan.algorithm_config, plan.config.init_from
    if plan.own_policy is None and run is None:
        return None
    from headrace.training import initial_policy

    own = None if plan.own_policy is None else initial_policy.own_policy(plan.own_policy)
    if own is not None:
        initial_policy.check_own(own, kind, plan.given)
    elif not hasattr(kind, "make_policy"):
        raise TypeError(f"init_from needs an algorithm with make_policy(), which {plan.algorithm} has not")

    def make(spaces: tuple[Space, Space], seed: int) -> Policy:
        if own:
            policy = initial_policy.made(own, kind, config, spaces, seed)
        else:
            policy = kind.make_policy(config, *spaces, seed)  # type: ignore[attr-defined]
        if run is not None:
            initial_policy.take_weights(policy, run)
        return policy

    return make


def _set_goals(algorithm: Algorithm, plan: TrainPlan, env: Env, stack: ExitStack) -> None:
    """Set an algorithm's goals, read from the environments. Raises ValueError if it cannot learn from them."""
    if isinstance(algorithm, Grouped) or plan.config.collection == "async":
        raise ValueError("hindsight is for one group of agents, and not for collection='async': leave one of them out")
    factory = env.factory
    if factory is None and plan.source is not None:
        entry: Any = envs.entry_of(plan.source)
        own = {"wrappers": plan.config.wrapper, "env_kwargs": plan.config.env_kwargs}
        factory = entry if is_kernel(entry) else envs.factory(plan.source, **own)  # type: ignore[arg-type]
    algorithm.goals = goals_of(env, factory, stack)  # type: ignore[attr-defined]


def _with_whole_gradient_steps(plan: TrainPlan, env: Env, config: TrainConfig) -> TrainPlan:
    """Lengthen the plan's rollouts until utd_ratio gives whole gradient steps: utd_ratio=0.25 with one environment is a
    gradient step every 4 steps. Rollouts that the user chose are kept, and OffPolicy.prepare() reports the actual
    ratio."""
    own = plan.algorithm_config
    if not isinstance(own, OffPolicyConfig) or plan.rollout_given or own.train_freq or env.num_agents > 1:
        return plan
    total = config.num_envs if config.learners > 1 else env.num_envs
    for times in range(1, MOST_STEPS // own.num_steps + 1):
        if fits_utd_ratio(own, own.num_steps * times * total):
            return replace(plan, algorithm_config=replace(own, num_steps=own.num_steps * times))
    return plan


def _learning_within_rollouts(plan: TrainPlan, env: Env, config: TrainConfig, placement: Placement) -> TrainPlan:
    """Replace short rollouts of an off-policy algorithm by longer ones within which it learns as often. Acting,
    compiled environments, the replay buffer and learning are then one call for all steps of a rollout. This is done
    only if nothing is updated once per rollout, so that the bits are the same. Environments that are not compiled may
    be slow, and such a rollout cannot be given up. For them the faster settings are only suggested, unless gradient
    steps on images take most of the time."""
    own = plan.algorithm_config
    if not isinstance(own, OffPolicyConfig) or plan.rollout_given or own.train_freq or own.gradient_steps:
        return plan
    if own.hindsight:  # its minibatches are drawn in torch
        return plan
    rows = own.num_steps * env.num_envs
    one_process = not isinstance(env, ActorEnv) and not placement.apart and placement.learn.type == "cpu"
    one_sum = config.collection == "sync" and max(config.learners, config.shards or 1) == 1
    if not one_process or not one_sum or env.num_agents > 1 or 2 * rows > ROWS:
        return plan
    longer = replace(own, num_steps=own.num_steps * -(-ROWS // rows), train_freq=own.num_steps)
    once_a_rollout = own.normalize_observation or bool(following(own)) or isinstance(own, EpsilonGreedyConfig)
    if isinstance(env, CompiledEnv) and not once_a_rollout:
        return replace(plan, algorithm_config=longer)
    if rows <= FEW_ROWS and not is_for_nature(env.observation_space):
        tell(
            f"{plan.algorithm} learns after every {rows} steps: num_steps={longer.num_steps} and "
            f"train_freq={longer.train_freq} learn as often with fewer calls, in less time unless the environment "
            "takes most of it, as `headrace diagnose` shows"
        )
    return plan


def _threads(plan: TrainPlan, config: TrainConfig, policy: Policy, placement: Placement) -> int | None:
    """Number of torch's threads. If it is not given, convolutions of large images get all cores. Exceptions are other
    processes that compute meanwhile, and several learners, which have one thread each and the bits of one learner."""
    in_turns = config.collection in ("sync", "double_buffered") and max(config.learners, config.shards or 1) == 1
    if plan.threads_given or placement.learn.type != "cpu" or not (in_turns and shares_threads(policy)):
        return config.threads
    return min(cores(), torch.get_num_threads())  # the user may have given torch fewer


def _divided(algorithm: Algorithm, env: Env, config: TrainConfig, ranks: Ranks | None) -> Any:
    """Prepare the algorithm for one of several learners, or for one learner that adds sums in parts."""
    size = config.shards or 1 if ranks is None else ranks.size
    if size > 1 and env.num_agents > 1:
        raise ValueError(f"{env.name} has several agents, which one learner learns from: leave out learners and shards")
    if ranks is not None:
        algorithm.part = (ranks.part.first, ranks.part.total)  # type: ignore[attr-defined]
        return algorithm
    return Sharded(algorithm, size) if size > 1 else algorithm


def _stagger(config: TrainConfig, env: Env, algorithm: Algorithm, collector: Collector, apart: bool) -> Stagger:
    rollouts_whole = "value" in algorithm.columns()
    if config.drop_slowest and (config.stagger or not rollouts_whole):
        raise ValueError("drop_slowest is for algorithms that learn from whole rollouts, and goes without stagger")
    if config.stagger and not rollouts_whole:
        raise ValueError(f"stagger is for algorithms that learn from rollouts, not for {algorithm.name}")
    here = config.stagger and not isinstance(env, ActorEnv) and not apart  # these collectors do it themselves
    return Stagger(collector.rollout, env.max_steps if here else None, env.num_agents, env.first_env)


def _graph(config: TrainConfig, env: Env, algorithm: Algorithm, collector: Collector) -> GraphedIteration | None:
    """Make the object that replays iterations from a CUDA graph; None without graphs, or if they fail their check."""
    if not (config.graphs and env.device.type == "cuda" and isinstance(collector, InlineCollector)):
        return None
    # environments of other libraries may launch kernels that no graph records
    compiled, alone = env.backend in ("cuda", "torch"), size_of(getattr(algorithm, "reduce", one_learner)) == 1
    if isinstance(algorithm, Grouped) or not (compiled or alone):
        return None
    if isinstance(collector, LearningCollector):
        tell("train_freq makes no CUDA graph of an iteration: num_steps in its place learns as often, with one")
        return None
    from headrace.checks import parity

    kind = GraphedIteration if compiled else GraphedParts
    return kind(collector, algorithm) if parity.graphs_trusted(env.device) else None
