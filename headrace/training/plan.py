"""The plan of a training, made of arguments, a file and defaults before anything is built."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from headrace import envs
from headrace.algorithms.base import algorithm_classes, is_offline
from headrace.core.device import kernel_threads, resolve
from headrace.core.terminal import tell
from headrace.core.trust import run_of
from headrace.core.types import EnvArgument, Json, Settings
from headrace.core.user_names import absolute_reference
from headrace.data.flat_dict import FlatDict
from headrace.data.spaces import Dict, is_image, leaves
from headrace.envs.native_source import native
from headrace.envs.sources import reference
from headrace.envs.strangers import check_settings
from headrace.setting_schedules import Named
from headrace.training.combinations import (
    check,
    check_intrinsic,
    check_learners,
    check_length,
    say_unused,
    skills_of,
    with_actors,
    with_central,
    with_learners,
    without_collecting,
)
from headrace.training.config import MAKE_SETTINGS, OF_MAKING, TrainConfig, default_of, merge_settings, read_toml
from headrace.training.multi_agent import with_self_play
from headrace.training.scaling import FOLLOWING, by_their_library, derived, settings_for, unregistered

if TYPE_CHECKING:
    from headrace.algorithms.base import Algorithm
    from headrace.envs import Env, Source
    from headrace.envs.workers.process import Workers

PRIVILEGED = "privileged_state"  # MuJoCo Playground's name for the part of observations that is for critics
PATHS = ("init_from", "replay", "replay_order")  # settings that are paths
ROLLOUT = {"num_steps", "train_freq", "gradient_steps"}  # settings that decide when an off-policy algorithm learns


def settings_of(config: str | Path, given: Container[str]) -> Json:
    """Read the settings of a TOML file. Raises Untrusted for a run's file that could have code run.

    given: names of settings that the user gives in their place. Call this within code_of() of run_of(config)."""
    file = read_toml(config)
    if run := run_of(config):
        check_settings(run, {name: value for name, value in file.items() if name not in given})
    return file


def of_zoo(file: str | Path, algorithm: Any, env: Any) -> Json:
    """Read the settings of a file of rl_zoo3: see sb3.zoo.entries. That module is imported here because sb3 is above
    training in the order of imports."""
    if not isinstance(algorithm, str):
        raise TypeError(f"zoo is for an algorithm given by its name, got {algorithm!r}: give 'ppo' or another")
    found: Json = import_module("headrace.sb3.zoo.entries").settings(file, algorithm, env)
    return found


@dataclass(frozen=True)
class TrainPlan:
    """The settings of a training, complete and checked. build() makes its parts."""

    algorithm: str | Algorithm  # its name, or one made by the user
    source: Source | None  # the first argument of make()
    ready_env: Env | None  # instead of a source: environments made by the user, who closes them
    config: TrainConfig
    algorithm_config: Any  # of the algorithm's own dataclass; None if the user made the algorithm
    derived: Settings  # settings that follow from num_envs and from the mode of collection
    agent_info: Any = None
    borrowed: Workers | None = None  # processes of the user, for workers or actors
    num_envs: int | None = None  # if it was given by name
    registered: Settings = field(default_factory=dict)  # settings registered for the environment that were not given
    assumed: bool = False  # whether `registered` comes from training.scaling, because none are registered
    facts: tuple[str, ...] = ()  # facts that `registered` follows from, for the message
    given: Settings = field(default_factory=dict)  # settings that the user gave, in a file or by name
    published: str = ""  # who published `registered`, if not tuned here
    own_policy: str | type | None = None  # a policy class of the user's, or its name
    tuned: bool = False  # whether settings of the algorithm were given; registered ones then need a message

    @property
    def rollout_given(self) -> bool:
        """True if the user gave one of the settings in ROLLOUT."""
        return bool(self.given.keys() & ROLLOUT)

    def compile_ahead(self, env: Env) -> None:
        """Start compiling what this training will need on idle cores: see kernels.runtime.ahead."""
        from headrace.kernels.runtime import ahead

        own, name = self.algorithm_config, str(getattr(self.algorithm, "name", self.algorithm))
        if self.config.actors is None and not any(is_image(leaf) for _, leaf in leaves(env.observation_space)):
            recurrent = getattr(own, "recurrent", "none") != "none"
            parts = {"own policy": self.own_policy, "recurrent": recurrent, "in Python": env.backend != "cpu"}
            ahead.start(" ".join((name, *(part for part, holds in parts.items() if holds))), kernel_threads())

    @property
    def threads_given(self) -> bool:
        """True if `threads` was given, or is registered."""
        return "threads" in {**self.registered, **self.given}

    @property
    def env(self) -> Source | Env:
        """The environment as it was given."""
        return self.ready_env or self.source  # type: ignore[return-value]


def settle(
    algorithm: str | Algorithm | None,
    env: EnvArgument,
    config: str | Path | None,
    agent_info: Any,
    options: Settings,
) -> TrainPlan:
    """Make the plan from Trainer()'s arguments. Raises TypeError, ValueError for wrong settings."""
    zoo = options.get("zoo")
    options = {name: value for name, value in options.items() if name != "zoo"}
    file = settings_of(config, {*options, *(() if env is None else ("env",))}) if config else {}
    if zoo is not None:
        file = {**of_zoo(zoo, algorithm or file.get("algorithm"), env or file.get("env")), **file}
    named = {name: file.pop(name, None) for name in ("algorithm", "env", "agent_info")}
    agent_info = named["agent_info"] if agent_info is None else agent_info
    algorithm = named["algorithm"] if algorithm is None else algorithm
    env = named["env"] if env is None else env
    if algorithm is None or env is None:
        raise TypeError('name an algorithm and an environment, as in train("ppo", "CartPole-v1")')
    if isinstance(algorithm, type):
        name = algorithm.__name__
        raise TypeError(f"{name} is a class: give its name, {name.lower()!r}, or one you made, {name}(policy)")
    if not isinstance(algorithm, str) and not hasattr(algorithm, "update"):
        raise TypeError(f"algorithm is {algorithm!r}: give a name, such as 'ppo', or one you made, PPO(policy)")
    ready_env, source = (envs.adapted(env), None) if is_ready(env) else (None, env)
    own_policy = {**file, **options}.get("policy")
    if isinstance(own_policy, type):
        options = {**options, "policy": reference(own_policy)}
    given = {name: options[name] for name in ("workers", "actors") if hasattr(options.get(name), "acquire")}
    options = {**options, **{name: processes.number for name, processes in given.items()}}
    kind, config_class = algorithm_classes(algorithm) if isinstance(algorithm, str) else (algorithm, None)
    wanted = {**file, **options}.get("registered", True) and source is not None
    asked = {**file, **options}
    defaults = settings_for(source, kind.name, asked) if wanted else {}  # type: ignore[arg-type]
    theirs = by_their_library(source, kind.name, asked) if wanted else None  # type: ignore[arg-type]
    known = theirs or (source is not None and kind.name in envs.spec(source).defaults)  # type: ignore[arg-type]
    assumed = bool(defaults) and config_class is not None and not known
    follows = derived(config_class, defaults, asked, assumed)
    train_config, algorithm_config = merge_settings(config_class, {**defaults, **follows}, file, options)
    train_config, source = _absolute(train_config), absolute_source(source)
    algorithm = absolute_reference(algorithm) if isinstance(algorithm, str) else algorithm
    if own_policy is not None and not isinstance(algorithm, str):
        raise TypeError(f"policy is for an algorithm given by its name: {algorithm.name} has its policy already")
    if ready_env is not None:
        _refuse_for_ready(train_config, ready_env)
    if is_offline(kind):
        train_config = without_collecting(train_config, kind.name, asked)
    train_config = with_learners(train_config)
    train_config = with_actors(train_config, _by_thread(source, ready_env, train_config, asked))
    own_config = getattr(algorithm, "config", algorithm_config)
    agent_info = skills_of(own_config, agent_info)
    check(train_config, kind, ready_env is not None, agent_info)
    algorithm_config, found = _of_actors(train_config, algorithm_config, asked)
    follows = {**follows, **found}
    check_learners(train_config, algorithm_config, source, agent_info, bool(given))
    check_length(train_config, own_config)
    check_intrinsic(train_config, own_config)
    train_config = with_self_play(train_config, own_config, asked, agent_info)
    if train_config.central_critic:
        algorithm_config = with_central(algorithm_config, kind.name)
    say_unused(set(asked), train_config, algorithm_config)
    return TrainPlan(
        algorithm,
        source,
        ready_env,
        train_config,
        algorithm_config,
        follows,
        agent_info,
        next(iter(given.values()), None),
        options.get("num_envs"),
        registered={name: value for name, value in defaults.items() if name not in {*asked, *follows}},
        assumed=assumed,
        given=asked,
        published=theirs.by if theirs else envs.spec(source).published if defaults else "",  # type: ignore[arg-type]
        own_policy=own_policy if isinstance(own_policy, type) else train_config.policy,
        tuned=bool(asked.keys() & getattr(config_class, "__dataclass_fields__", {}).keys()),
    )


def of_images(plan: TrainPlan) -> TrainPlan:
    """Adapt the plan of an unregistered environment, once it has been made and its observations are images.

    The number of environments stays, and so do settings that were given, or chosen since settle()."""
    assert isinstance(plan.algorithm, str)
    kind, config_class = algorithm_classes(plan.algorithm)
    defaults = unregistered(kind.name, plan.given, images=True)
    follows = derived(config_class, defaults, plan.given, True)
    settings = merge_settings(config_class, {**defaults, **follows}, {}, plan.given)
    names = {*defaults, *follows, *plan.derived} - {"num_envs"}
    config, own = (
        replace(now, **{setting.name: getattr(new, setting.name) for setting in fields(new) if setting.name in names})
        for now, new in zip((plan.config, plan.algorithm_config), settings, strict=True)
    )
    own, found = _of_actors(config, own, plan.given)
    follows = {**follows, **found}
    check_learners(config, own, plan.source, plan.agent_info, plan.borrowed is not None)
    check_length(config, own)
    registered = {name: x for name, x in {**plan.registered, **defaults}.items() if name not in {*plan.given, *follows}}
    changed = {"config": config, "algorithm_config": own, "derived": follows, "registered": registered}
    return replace(plan, **changed, facts=("images", *plan.facts))


def of_env(plan: TrainPlan, env: Env) -> TrainPlan:
    """Adapt the plan to environments that have been made: which members the critic alone sees, and whether a stagger
    that followed has a time limit. Raises ValueError if the algorithm's usual actor would see privileged_state."""
    return _with_useful_stagger(_with_privileged(plan, env), env)


def _with_privileged(plan: TrainPlan, env: Env) -> TrainPlan:
    """Change the plan such that the critic alone sees privileged_state, unless the user has given settings for members,
    or a policy. Raises ValueError if the algorithm's usual actor would see it."""
    said = plan.given.keys() & {"ignore", "critic_members"} or plan.own_policy is not None
    if said or not isinstance(plan.algorithm, str) or not _has_it(env):
        return plan
    own = plan.algorithm_config
    if not hasattr(own, "critic_members") or own.recurrent != "none" or getattr(own, "shared", False):
        raise ValueError(
            f"observations have {PRIVILEGED}, which no policy in use has, and the actor of {plan.algorithm} with these "
            f"settings would see: ignore=[{PRIVILEGED!r}] leaves it out, and ignore=[] lets the actor see it"
        )
    tell(f"{PRIVILEGED} of the observations is for the critic alone; with critic_members=() the actor sees it, too")
    return replace(plan, algorithm_config=replace(own, critic_members=(PRIVILEGED,)))


def _with_useful_stagger(plan: TrainPlan, env: Env) -> TrainPlan:
    """Remove the stagger that followed from num_envs, if episodes have no time limit over which to spread them. Says so
    of a stagger that was given."""
    if not plan.config.stagger or env.max_steps is not None:
        return plan
    if "stagger" in plan.derived:
        follows = {name: value for name, value in plan.derived.items() if name != "stagger"}
        return replace(plan, config=replace(plan.config, stagger=False), derived=follows)
    tell(
        f"stagger does nothing: it begins episodes at different steps of the time limit, and {env.name} has none; "
        "leave stagger out, or give time_limit"
    )
    return plan


def _has_it(env: Env) -> bool:
    """Tell whether an agent's observations have the member PRIVILEGED."""
    seen = [observed for observed, _ in env.spaces.values()]
    members = [x.members if isinstance(x, FlatDict) else x.spaces for x in seen if isinstance(x, Dict | FlatDict)]
    return any(PRIVILEGED in names for names in members)


def _of_actors(config: TrainConfig, own: Any, given: Settings) -> tuple[Any, Settings]:
    """Return the algorithm's config with settings that follow from the mode of collection and a recurrent policy, and
    these settings."""
    follows: dict[str, Any] = {}
    for rule in FOLLOWING:
        if found := rule(config, own, given):
            follows, own = {**follows, **found}, replace(own, **found)
    return own, follows


def _absolute(config: TrainConfig) -> TrainConfig:
    """Make names of files in the config absolute."""
    paths: Json = {name: str(Path(path).expanduser().resolve()) for name in PATHS if (path := getattr(config, name))}
    return replace(
        config,
        wrapper=tuple(map(absolute_reference, config.wrapper)),
        policy=config.policy and absolute_reference(config.policy),
        **paths,
    )


def absolute_source(source: Any) -> Any:
    """Make names of files in a source absolute, since an environment may change the working folder."""
    if isinstance(source, list | tuple):
        return type(source)(map(absolute_source, source))
    return absolute_reference(source) if isinstance(source, str) else source


def is_nameless(name: str | None) -> bool:
    """Tell whether a reference is to a class or function that only the process that defined it can find."""
    return name is not None and ("<" in name or name.startswith("__main__:"))


def nameless_settings(settings: Json) -> tuple[str, ...]:
    """Names of a run's settings that were classes or functions which only the process that defined them can find."""
    schedules = {"schedule": [settings.get("schedule")], "schedules": settings.get("schedules", {}).values()}
    named = {"policy": [settings.get("policy")], **schedules}
    return tuple(setting for setting, names in named.items() if any(map(is_nameless, names)))


def _refuse_for_ready(config: TrainConfig, env: Env) -> None:
    """Raise ValueError for settings of environments that exist already, where they would have no effect."""
    for name in (*MAKE_SETTINGS, *OF_MAKING, "backend"):
        value = getattr(config, name)
        if value != default_of(TrainConfig.__dataclass_fields__[name]):
            raise ValueError(f"{name}={value!r} is for environments that train() makes: give it to make() instead")
    if config.collect_device is not None:
        given = f"collect_device is {config.collect_device!r}"
        raise ValueError(f"{given}, and the environments you made are on {env.device}: leave it out")
    if config.device != "auto" and resolve(config.device).type != env.device.type:
        raise ValueError(f"device is {config.device!r}, and the environments you made are on {env.device}")


def is_ready(source: EnvArgument) -> bool:
    """Tell whether this is an Env, rather than the first argument of make()."""
    return not isinstance(source, str | type) and hasattr(source, "num_envs") and hasattr(source, "step")


def making(config: TrainConfig) -> Json:
    """Options of make() and part_maker() that have other names or values as settings."""
    given: Json = {"params": config.params or None, "wrappers": config.wrapper, "env_kwargs": config.env_kwargs}
    return given | ({"with_state": True} if config.central_critic else {})


def options_of(config: TrainConfig) -> Json:
    """Options of make() that are settings, without workers."""
    return {name: getattr(config, name) for name in MAKE_SETTINGS if name != "workers"} | making(config)


def _by_thread(source: Source | None, ready_env: Env | None, config: TrainConfig, given: Settings) -> bool:
    """Tell whether a thread can step the environments while the policy learns: they are one vector, whose steps release
    Python's lock."""
    if ready_env is not None:
        return ready_env.backend == "vector"
    if source is None or config.learners > 1 or config.backend not in ("auto", "vector"):
        return False
    return envs.comes_as_vector(source) or _stepped_by(source, config, given, config.num_envs)[0] != source


def stepped_by(plan: TrainPlan, num_envs: int) -> tuple[Source | None, Json, str]:
    """The source of `num_envs` environments in this process, options of make(), and a message.

    Compiled loops step the source if they have the same episodes: see envs.native_source, also for the message."""
    config = plan.config
    source, own, line = _stepped_by(plan.source, config, plan.given, num_envs)
    if plan.borrowed or config.workers not in (None, "auto"):  # measured or given with the source as it is
        return plan.source, options_of(config), line if source == plan.source else ""
    return source, own, line


def _stepped_by(
    source: Source | None, config: TrainConfig, given: Settings, num_envs: int
) -> tuple[Source | None, Json, str]:
    options = options_of(config)
    if config.backend != "auto" or given.get("workers") not in (None, "auto"):
        return source, options, ""
    found, own, line = native(source, num_envs, options | {"log_info": config.log_info})
    del own["log_info"]
    return found, own, line


def saved_settings(plan: TrainPlan, config: TrainConfig, own: Any, agent_info: str | None) -> Json:
    """Settings from which train(resume=...) makes the trainer again, in JSON's types. own: the algorithm's config."""
    algorithm = plan.algorithm
    agent_info = None if getattr(own, "intrinsic", "none") == "diayn" else agent_info  # from the setting `skills`
    return {
        "algorithm": absolute_reference(algorithm) if isinstance(algorithm, str) else algorithm.name,
        "env": None if plan.source is None else _reference(plan.source),
        **({} if agent_info is None else {"agent_info": agent_info}),
        **asdict(config),
        **(_named(asdict(own)) if is_dataclass(own) and not isinstance(own, type) else {}),
    }


def _named(own: Json) -> Json:
    """Settings of an algorithm, with functions replaced by their names."""

    def name(schedule: Any) -> Any:
        if isinstance(schedule, str | Named):
            return absolute_reference(str(schedule))
        return reference(schedule) if isinstance(schedule, FunctionType) else f"<{type(schedule).__name__}>"

    if "schedules" in own:
        schedules = {setting: name(schedule) for setting, schedule in own["schedules"].items()}
        return own | {"schedule": name(own["schedule"]), "schedules": schedules}
    return own


def _reference(source: Source) -> str | None:
    """The name by which another process finds the environment again, from any folder; None where there is none."""
    name = envs.spec(source).name
    return None if "<" in name else absolute_reference(name)  # "<": a lambda, or something local to a function
