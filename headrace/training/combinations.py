"""Check which settings of parallel collection go together. An error names the nearest combination that works."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from headrace import setting_schedules
from headrace.algorithms.base import Algorithm, algorithms_with
from headrace.algorithms.config_bases import EpsilonGreedyConfig
from headrace.core.cores import cores
from headrace.core.terminal import tell
from headrace.core.text import shown
from headrace.data.flat_dict import CENTRAL
from headrace.data.spaces import Discrete, is_continuous, is_image, leaves
from headrace.envs.base import Env
from headrace.envs.construct import comes_as_vector
from headrace.parallel.schedule import check_equal
from headrace.training.config import TrainConfig, default_of, needless
from headrace.training.torchrun import local_rank, started_by_torchrun

OF_COLLECTING = (  # settings of how environments are stepped, or of the episodes of a training
    "workers",
    "actors",
    "collection",
    "max_policy_lag",
    "replay_order",
    "advantages",
    "exchange",
    "drop_slowest",
    "learners",
    "shards",
    "cluster",
    "cluster_open",
    "stagger",
    "collect_device",
    "max_episodes",
    "window",
    "log_info",
    "curriculum",
)
# a similar algorithm that learns from experience of any age
NEAREST_ALGORITHM = {"ppo": "appo", "trpo": "appo", "a2c": "impala", "reinforce": "impala", "pqn": "dqn"}


def with_actors(config: TrainConfig, by_thread: bool) -> TrainConfig:
    """Add a number of actors to the config if its mode of collection needs actors and none is given. One core is left
    to the learner, unless actors send gradients.

    by_thread: whether a thread can collect in place of actors while the policy learns."""
    if config.exchange == "gradients" and config.actors in (None, "auto") and config.workers is None:
        number = min(cores(), config.num_envs)
        if config.collection == "async":  # all have the same number of environments
            number = max(n for n in range(1, number + 1) if config.num_envs % n == 0)
        all_of_them = f"{number} on {cores()} cores, all of which compute gradients"
        tell(f"exchange='gradients' starts actors: {all_of_them} (actors gives another number)")
        return replace(config, actors=number)
    if config.collection != "overlapped" or config.actors is not None or config.workers is not None:
        return config
    if by_thread:
        tell("collection='overlapped': a thread of this process steps the environments while the policy learns")
        return config
    number = min(max(1, cores() - 1), config.num_envs)
    left = "the others are" if cores() - number > 1 else "one core is"
    shares = f"{number} of {cores()} cores collect, and {left} left to the learner"
    tell(f"collection='overlapped' starts actors: {shares} (actors gives another number)")
    return replace(config, actors=number)


def with_central(own: Any, name: str) -> Any:
    """Change an algorithm's config such that the critic alone sees the state of all agents. own: the config; None for
    an algorithm that was made, whose policy decides what its critic sees. Raises ValueError for algorithms without such
    a critic.

    name: the algorithm's."""
    if own is None:
        return None
    if not hasattr(own, "critic_members"):
        raise ValueError(f"central_critic is for {', '.join(algorithms_with('critic_members'))}, not for {name}")
    free = {"critic_members": ((), (CENTRAL,)), "recurrent": ("none",), "shared": (False,), "use_sde": (False,)}
    for other, values in free.items():
        if (value := getattr(own, other, values[0])) not in values:
            raise ValueError(f"central_critic does not go with {other}={value!r}: leave one of them out")
    return replace(own, critic_members=(CENTRAL,))


def with_learners(config: TrainConfig) -> TrainConfig:
    """Set the number of learners to that of torchrun's processes. Raises ValueError if another number is given."""
    started = started_by_torchrun()
    if started is None or config.learners == started[1]:
        return config
    if config.learners > 1:
        raise ValueError(f"torchrun has started {started[1]} processes: leave out learners={config.learners}")
    return replace(config, learners=started[1])


def without_collecting(config: TrainConfig, name: str, given: Collection[str]) -> TrainConfig:
    """Adapt the config to a training from recorded data alone: one environment, which is never stepped.

    name: of the algorithm. given: names of the settings that the user gave.
    Raises ValueError without data, for settings of collecting, and for a target_return without evaluations."""
    if config.replay is None:
        raise ValueError(
            f"{name} learns from recorded data alone: give replay, a folder of `headrace record`, a dataset of Minari, "
            "or a run that has a replay buffer"
        )
    wrong = [
        field
        for field in OF_COLLECTING
        if getattr(config, field) != default_of(TrainConfig.__dataclass_fields__[field])
    ]
    wrong += ["num_envs"] * ("num_envs" in given and config.num_envs != 1)
    if wrong:
        found = ", ".join(f"{field}={getattr(config, field)!r}" for field in wrong)
        raise ValueError(
            f"{name} learns from recorded data alone, and takes no steps of environments: leave out {found}"
        )
    if config.target_return is not None and not config.eval_freq:
        raise ValueError(
            f"target_return={config.target_return:g} of {name} is that of an evaluation, since it has no episodes: "
            "give eval_freq, the gradient steps between two"
        )
    return replace(config, num_envs=1)


def check(config: TrainConfig, algorithm: Any, ready_env: bool, agent_info: Any) -> None:
    """Raise ValueError, with the nearest combination that works, for settings that do not go together.

    algorithm: its class, or an instance. ready_env: whether the environments are made already. agent_info: see Trainer.
    """
    number = max(config.learners, config.shards or 1)
    if number > 1 and not getattr(algorithm, "divisible", True):
        raise ValueError(
            f"{algorithm.name} normalises each batch as a whole, which {number} learners or shards would divide: leave "
            "them out, or use sac or tqc"
        )
    if config.central_critic and agent_info is not None:
        raise ValueError("central_critic does not go with agent_info: leave one of them out")
    if config.exchange == "gradients":
        _check_gradients(config, algorithm)
    if config.advantages == "actor":
        _check_advantages(config, algorithm)
    if config.cluster is not None:
        _check_cluster(config)
    if config.actors is None:
        if config.collection == "overlapped" and config.workers is not None:
            raise ValueError(
                f"collection='overlapped' needs a copy of the policy beside the environments, which workers have not: "
                f"give actors={config.workers} in place of workers={config.workers}"
            )
        _only_async(config, "actors and collection='async'")
        return
    if config.workers is not None:
        raise ValueError(
            f"actors={config.actors} and workers={config.workers}: actors step their environments themselves, so leave "
            "out workers"
        )
    if ready_env:
        raise ValueError(
            f"actors={config.actors} make their environments in their own processes: give a name, a class or a "
            "function in place of environments that are made"
        )
    if agent_info is not None:
        raise ValueError(f"agent_info does not reach actors: leave out actors={config.actors}, or use workers")
    if config.collection == "double_buffered":
        raise ValueError("collection='double_buffered' is for workers: with actors use 'overlapped', or give workers")
    if config.drop_slowest:
        raise ValueError(
            f"drop_slowest={config.drop_slowest} is for workers: actors do not wait for each other with "
            "collection='async', and lose no steps"
        )
    if config.collection != "async":
        _only_async(config, "collection='async'")
    elif config.actors != "auto":
        check_equal(config.num_envs, config.actors)


def check_length(config: TrainConfig, own: Any) -> None:
    """Raise ValueError for settings that change over a training whose length is not known."""
    if any(limit is not None for limit in (config.total_steps, config.max_episodes, config.max_seconds)):
        return
    falls = setting_schedules.following(own)
    if isinstance(own, EpsilonGreedyConfig) and own.exploration_rate(0.0) != own.exploration_rate(1.0):
        falls.append("the exploration rate")
    if falls:
        raise ValueError(
            f"target_return={config.target_return:g} alone does not give the length of the training, over which "
            f"{' and '.join(falls)} changes: give total_steps, max_episodes or max_seconds, too"
        )


def check_intrinsic(config: TrainConfig, own: Any) -> None:
    """Raise ValueError for settings with which successive rows are not of the same environments, or not of all."""
    if getattr(own, "intrinsic", "none") == "none":
        return
    alone = {"collection": "async", "drop_slowest": 0.0, "learners": 1, "shards": None, "advantages": "learner"}
    for name, usual in (*alone.items(), ("exchange", "experience")):
        value = getattr(config, name)
        if (value == usual) if name == "collection" else value not in (usual, 1):
            raise ValueError(f"intrinsic={own.intrinsic!r} does not go with {name}={value!r}: leave one of them out")


def skills_of(own: Any, agent_info: Any) -> Any:
    """The agent_info of a training: for diayn a skill for each episode. Raises ValueError if another one is given."""
    if getattr(own, "intrinsic", "none") != "diayn" or not hasattr(own, "skills"):
        return agent_info  # algorithms without `intrinsic` refuse it themselves
    if agent_info is not None:
        raise ValueError(
            f"intrinsic='diayn' draws a skill for each episode as agent_info, and {shown(agent_info)} is given: leave "
            "it out, and give skills, their number"
        )
    return Discrete(own.skills)


def say_unused(given: Collection[str], config: TrainConfig, own: Any) -> None:
    """Report given settings that have no effect because of others."""
    values = {**vars(config), **(vars(own) if own is not None else {})}
    known = {**TrainConfig.__dataclass_fields__, **getattr(own, "__dataclass_fields__", {})}
    for name, why in needless(given, values).items():
        if values[name] != default_of(known[name]):
            tell(why)


def say_unused_by_spaces(own: Any, env: Env) -> None:
    """Report settings of the network that have no effect for an environment's spaces."""
    seen = (leaf for _, leaf in leaves(env.observation_space))
    if getattr(own, "images", "auto") != "auto" and not any(map(is_image, seen)):
        space = shown(env.observation_space)
        images = "images are Boxes of uint8 in 2 or 3 dimensions"
        tell(f"images={own.images!r} is without effect: {images}, got {space}. Leave it out")
    std = getattr(own, "initial_std", None)
    if std is not None and not is_continuous(env.action_space):
        space = shown(env.action_space)
        tell(f"initial_std={std!r} is without effect: it is for Box actions, and these are {space}. Leave it out")


def _check_cluster(config: TrainConfig) -> None:
    """Raise ValueError for settings that the actors of a cluster do not support."""
    if not isinstance(config.actors, int):
        raise ValueError(f"cluster={config.cluster!r} has cores for actors: give actors, their number")
    if config.collect_device not in (None, "cpu", "cuda"):
        raise ValueError(
            f"collect_device={config.collect_device!r} is not for a cluster's actors: give 'cuda', and each gets a GPU "
            "of its node, or 'cpu'"
        )


def _only_async(config: TrainConfig, needs: str) -> None:
    """Raise ValueError for settings that would have no effect."""
    for name in ("max_policy_lag", "replay_order"):
        value = getattr(config, name)
        if value != TrainConfig.__dataclass_fields__[name].default:
            raise ValueError(f"{name}={value!r} needs {needs}: leave it out, or give those")


def check_lag(config: TrainConfig, algorithm: Algorithm) -> None:
    """Raise ValueError if actors would collect with an older policy than the algorithm can learn from."""
    lag = config.largest_lag  # 0 for gradients: their modes are checked by algorithm
    most: int | None = getattr(algorithm, "max_lag", 0)
    if most is None or lag <= most:
        return
    name, mode = algorithm.name, f"collection={config.collection!r}"
    learns = "of its present policy" if most == 0 else f"at most {most} update old, and does not correct for more"
    given = "1 update" if lag == 1 else f"up to max_policy_lag={lag} updates"
    other = NEAREST_ALGORITHM.get(name)
    near = f"collection={'sync' if most == 0 else 'overlapped'!r}"
    raise ValueError(
        f"{name} learns from experience {learns}, and {mode} gives it {given} old: use {near}"
        f"{f', or {other}' if other else ''}"
    )


def _check_advantages(config: TrainConfig, algorithm: Any) -> None:
    """Raise ValueError if actors cannot compute advantages, or would compute different ones from the learner's."""
    if config.actors is None or config.exchange == "gradients":
        raise ValueError("advantages='actor' is for actors that send experience: give actors, or leave it out")
    if not hasattr(algorithm, "process"):
        raise ValueError(f"advantages='actor' is for algorithms with advantages, which {algorithm.name} does not have")
    if getattr(algorithm, "max_lag", 0) is None:
        raise ValueError(
            f"advantages='actor' is not for {algorithm.name}, whose advantages depend on the policy that learns: leave "
            "it out, or use ppo"
        )


def _check_gradients(config: TrainConfig, algorithm: Any) -> None:
    """Raise ValueError if actors cannot compute the algorithm's gradient, or not in this mode."""
    modes, collection = getattr(algorithm, "gradient_modes", ()), config.collection
    if not modes:
        raise ValueError(
            f"exchange='gradients' is for algorithms that take one gradient step on each rollout, and {algorithm.name} "
            "does not: use a2c or reinforce, or leave out exchange"
        )
    if config.actors is None:
        raise ValueError(
            f"exchange='gradients' needs a copy of the policy in the processes of the environments: give "
            f"actors={config.workers} in place of workers={config.workers}"
        )
    if collection not in ("sync", "async"):
        raise ValueError(
            f"collection={collection!r} does not go with exchange='gradients', where learning is too short to collect "
            f"during it: use {' or '.join(map(repr, modes))}"
        )
    if collection not in modes:
        raise ValueError(
            f"collection={collection!r} applies gradients to a later policy than the one that collected, and "
            f"{algorithm.name}'s is that of the policy that collected: use collection='sync', or a2c"
        )
    most, actors = config.max_policy_lag + 1, config.actors
    if collection == "async" and isinstance(actors, int) and actors > most:
        tell(f"{most} of {actors} actors are at work at a time: give max_policy_lag={actors - 1} for all of them")


def check_learners(config: TrainConfig, own: Any, source: Any, agent_info: Any, borrowed: bool) -> None:
    """Raise ValueError, with the nearest combination that works, for settings that several learners do not support.

    own: the algorithm's config, or None. source: what make() makes environments of; None if they are made already.
    borrowed: whether the user's Workers are given.
    """
    number = max(config.learners, config.shards or 1)
    if number == 1:
        return
    what = f"learners={config.learners}" if config.learners > 1 else f"shards={config.shards}"
    if config.learners > 1 and config.shards not in (None, config.learners):
        raise ValueError(f"shards={config.shards} is for one learner, and {what} are as many shards: leave it out")
    if number > config.num_envs:
        raise ValueError(f"{what} divide num_envs={config.num_envs} environments: give at most {config.num_envs}")
    if number > getattr(own, "batch_size", number):
        raise ValueError(f"{what} divide the {own.batch_size} rows of a batch: give a batch_size of {number} or more")
    if getattr(own, "train_freq", 0):
        near = f"num_steps={own.train_freq}"
        raise ValueError(
            f"train_freq={own.train_freq} is for one learner: leave out {what}, or give {near} in its place"
        )
    if config.collection == "async" or config.exchange == "gradients":
        wrong = "collection='async'" if config.collection == "async" else "exchange='gradients'"
        raise ValueError(f"{wrong} is for one learner: leave out {what}, or use collection='sync' or 'overlapped'")
    if config.learners > 1:
        _check_parts(config, source, agent_info, borrowed, what)
    elif getattr(own, "exploration_spread", 0):
        raise ValueError(f"exploration_spread={own.exploration_spread} goes with learners, not with {what}: use those")


def _check_parts(config: TrainConfig, source: Any, agent_info: Any, borrowed: bool, what: str) -> None:
    """Raise ValueError for environments that learners cannot divide."""
    if source is None or agent_info is not None or borrowed:
        given = "environments that are made" if source is None else "Workers" if borrowed else "agent_info"
        raise ValueError(f"{what} make their environments in their own processes, and {given} do not reach these")
    if config.workers is not None or config.drop_slowest:
        raise ValueError(f"{what} do not go with workers={config.workers}: give actors={config.workers} in their place")
    if isinstance(config.actors, int) and config.actors % config.learners:
        near = max(config.actors // config.learners, 1) * config.learners
        raise ValueError(f"actors={config.actors} cannot be divided by {what}: give actors={near}")
    if config.stagger and config.actors is not None:
        raise ValueError(f"stagger does not go with {what} that have actors: leave out stagger or actors")
    on_gpu = config.device == "cuda" and config.actors is None and config.collect_device != "cpu"
    backends = ("cuda", "torch", "inline") if on_gpu else ("cpu", "inline")
    if config.backend not in ("auto", *backends) or comes_as_vector(source):
        *others, last = map(repr, backends)
        these = f"{', '.join(others)} or {last}"
        raise ValueError(f"{what} divide environments that are made one by one, of the backend {these}")
    if config.device == "cuda":
        _check_gpus(config, what)
        return
    if config.device not in ("auto", "cpu"):
        raise ValueError(
            f"{what} learn on the CPU, or on a GPU each: give device='cuda' in place of {config.device!r}, or leave it "
            "out"
        )
    if config.collect_device not in ("auto", "cpu", None):
        given = f"collect_device={config.collect_device!r}"
        raise ValueError(f"{what} learn on the CPU: leave out {given}, or give device='cuda'")


def _check_gpus(config: TrainConfig, what: str) -> None:
    """Raise ValueError if learners cannot have a GPU each."""
    if config.collect_device not in (None, "cpu", "cuda"):
        raise ValueError(
            f"{what} have a GPU each: give collect_device='cuda' or 'cpu' in place of {config.collect_device!r}"
        )
    from headrace.parallel.cuda.device_sum import check_gpus

    if started_by_torchrun() is None:
        check_gpus(config.learners, f"{what} with device='cuda'", "learners=")
        return
    here = local_rank()[1]
    check_gpus(here, f"{here} processes of torchrun on one machine, with device='cuda',", "--nproc-per-node ")
