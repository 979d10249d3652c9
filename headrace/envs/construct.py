"""Environments: `make` gives N of them, by name, Gymnasium id, `file.py:Class`, class or function."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import gymnasium
import torch
from gymnasium.spaces import Space

from headrace.core.device import resolve
from headrace.core.setting_types import fit
from headrace.core.types import EnvArgument, Settings
from headrace.core.user_names import absolute_reference, is_from_file, member
from headrace.envs import sources
from headrace.envs.base import Env
from headrace.envs.builtin import settings  # noqa: F401  registers environments
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.envs.gym.agent_groups import Grouping, grouped
from headrace.envs.gym.change_params import begin_with, with_params
from headrace.envs.gym.several import Several
from headrace.envs.gym.wrappers import NamedWrapper, limited, wrapped
from headrace.envs.gym.wrapping import UNWRAPPED, Wrapping
from headrace.envs.hints import unknown
from headrace.envs.registry import Maker, Source, Spec, names, spec
from headrace.envs.simulators import by_library
from headrace.envs.sources import Entry

if TYPE_CHECKING:
    from headrace.envs.workers.process import Workers

Wrappers = Sequence[Callable[[gymnasium.Env], gymnasium.Env] | str]
Functions = Sequence[Callable[[gymnasium.Env], gymnasium.Env]]
BACKENDS = ("auto", "cpu", "cuda", "torch", "inline", "workers", "vector")


def make(
    source: Source,
    num_envs: int,
    *,
    backend: str = "auto",
    device: str | torch.device = "cpu",
    threads: int | None = None,
    params: Settings | None = None,
    wrappers: Wrappers = (),
    ignore: Sequence[str] = (),
    workers: int | Workers | Literal["auto"] | None = None,
    on_error: Literal["raise", "restart"] = "raise",
    step_timeout: float = 60.0,
    group_by: Grouping = "spaces",
    frame_stack: int = 1,
    time_limit: int | None = None,
    reward_scale: float = 1.0,
    info_mask: bool = False,
    with_state: bool = False,
    first_env: int = 0,
    env_kwargs: Settings | None = None,
    **kwargs: Any,
) -> Env:
    """Make an Env of N environments.

    source: a registered name ("CartPole-v1"); any Gymnasium id ("LunarLander-v3", "package:Id-v0");
    "path/to/file.py:Class" or "package.module:Class" of a KernelEnv or gymnasium.Env; such a class; a function that
    returns a gymnasium.Env or a pettingzoo.ParallelEnv. Vector environments come from Atari games ("ALE/Pong-v5"),
    tasks of EnvPool ("envpool/Pong-v5") and of MuJoCo ("mujoco/Hopper-v5"), ids with a vector entry point, and
    functions with a parameter `num_envs` that return a gymnasium.vector.VectorEnv or a
    headrace.envs.vector.simulators.Simulator. With a list of sources that are not compiled, source i modulo their
    number makes environment i. PettingZoo's turn_based_aec_to_parallel steps a pettingzoo.AECEnv, in which agents only
    take turns: only the action of the next agent counts.
    backend: "cpu", "cuda" or "torch" compile a KernelEnv; "inline" steps Gymnasium environments one after another (for
    a port, its reference); "workers" steps them in processes; "vector" steps a vector environment; "auto" compiles
    environments for `device` if possible, and otherwise uses workers if they are given, or a vector environment.
    A pettingzoo.ParallelEnv has several agents, and num_envs copies: see envs.gym.pettingzoo. group_by: the agents that
    share a policy: those with the same "spaces", with the same "names" up to a number, none ("agents"), or groups by
    name, {"hunters": ["wolf", "fox"], "prey": ["hare"]}. with_state: whether observations include its state(), if it
    has one. frame_stack: number of observations stacked. time_limit: steps until an episode is truncated. reward_scale:
    a factor of rewards, but not of reported returns. ignore: members of a Dict observation that are left out.
    info_mask: whether policies only take actions that info["action_mask"] allows. Compiled environments only support
    time_limit of these.
    workers (the number of processes, or the Workers to use, or "auto" to choose by measuring one environment, possibly
    none), on_error and step_timeout: see headrace.envs.workers.env.WorkerEnv. on_error also applies to "inline".
    device: of the rollouts. For environments on the CPU, a DeviceEnv copies to another device. first_env: number of the
    first environment, for a part of a larger set: episodes and random numbers are those of these environments in the
    whole set. Not for workers and vectors.
    params: name -> one value, or a sequence with one per environment. Names are those of a compiled environment's
    Params; for others see Env.set_params(). Few vectors support them. threads: of the cpu backend, for compiled
    environments. wrappers (functions, or their names, file.py:Class) and env_kwargs are for environments that are not
    compiled. env_kwargs are arguments, with any names, of gymnasium.make, the class or the function, or with "vector"
    of the function that makes the vector. kwargs: further such arguments, whose names are none of the above.

    Raises ValueError for an unknown name, backend or num_envs; FileNotFoundError or ImportError for a missing file,
    module or extra; TypeError for unsupported spaces, and for a name in both env_kwargs and kwargs.
    """
    kwargs = sources.arguments_of(env_kwargs, kwargs)
    if (num_envs := fit("num_envs", num_envs, int)) < 1:
        raise ValueError(f"num_envs must be at least 1, got {num_envs}")
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}: use {', '.join(BACKENDS)}")
    known = spec(source)
    entry = _entry(known)
    wrapping = Wrapping(frame_stack, time_limit, reward_scale, tuple(ignore), info_mask, with_state)
    wrappers = named(wrappers)
    if workers == "auto":
        workers = None
        if backend == "auto" and not sources.is_kernel(entry) and not sources.comes_as_vector(known.name, entry):
            from headrace.envs.workers.tuning import tried

            workers = tried(_factory(known.name, entry, wrappers, kwargs, wrapping), num_envs) or None
    if workers is not None and backend not in ("auto", "workers"):
        raise ValueError(f"workers={workers} is for the workers backend; the backend is {backend!r}: leave one out")
    vector = backend == "vector" or (backend == "auto" and sources.comes_as_vector(known.name, entry))
    if first_env and (workers is not None or backend == "workers" or vector):
        raise ValueError(
            f"first_env={first_env} is for environments of this process that are made one by one: leave it out"
        )
    if workers is not None or backend == "workers":
        _refuse_compiled_options(known.name, "workers", threads)
        where = resolve(device)
        from headrace.envs.workers.env import WorkerEnv

        build = factory_elsewhere(known, wrappers, kwargs, wrapping)
        env = WorkerEnv(
            build, num_envs, known.name, workers, on_error=on_error, step_timeout=step_timeout, group_by=group_by
        )
        return _seen_from(where, begin_with(env, params))
    if vector:
        if asked := wrapping.asked("frame_stack", "time_limit", "reward_scale", "info_mask"):
            raise ValueError(
                f"{known.name} comes as a vector of environments, which takes no {asked}: use the library's "
                "own options, or backend='inline'"
            )
        own = {name: value for name, value in (("params", params), ("num_threads", threads)) if value is not None}
        return _vector(known.name, entry, num_envs, device, wrappers, kwargs, wrapping.ignore, own)
    if sources.is_kernel(entry) and backend != "inline":
        if wrappers or kwargs:
            given = ", ".join([*kwargs, *(["wrappers"] if wrappers else [])])
            raise TypeError(f"{known.name} is compiled and takes no {given}: use params, or backend='inline'")
        if asked := wrapping.asked("frame_stack", "reward_scale", "ignore", "info_mask"):
            raise ValueError(
                f"{known.name} is compiled and takes no {asked}: write it into its observe(), step() or action_mask(), "
                "take recurrent or normalize_return instead, or use backend='inline'"
            )
        entry = entry if time_limit is None else limited(entry, time_limit)
        backend, where = _compiled_backend(backend, device)
        from headrace.envs.compiled.env import CompiledEnv

        compiled = CompiledEnv(entry, num_envs, backend, threads, params, where, known.name, first_env)
        compiled.made_with = {} if time_limit is None else {"time_limit": time_limit}
        return compiled if group_by == "spaces" else _regrouped(compiled, group_by)
    _refuse_compiled_options(known.name, backend, threads)
    where = resolve(device)
    from headrace.envs.gym.pettingzoo import inline, restarts

    build = _factory(known.name, entry, wrappers, kwargs, wrapping)
    options = {"first_env": first_env, "restart": restarts(on_error), "group_by": group_by}
    return _seen_from(where, begin_with(inline(build, num_envs, known.name, **options), params))


def factory(
    source: Source,
    *,
    wrappers: Wrappers = (),
    frame_stack: int = 1,
    time_limit: int | None = None,
    ignore: Sequence[str] = (),
    info_mask: bool = False,
    params: Settings | None = None,
    compiled: bool = False,
    env_kwargs: Settings | None = None,
    **kwargs: Any,
) -> Callable[[], gymnasium.Env]:
    """Return a function that makes one gymnasium.Env: the reference of a port, or the KernelEnv in plain Python.

    compiled: whether kernels step a KernelEnv instead. They always step a port with params, and its reference draws it.
    The other options are those of make().
    """
    known, kwargs = spec(source), sources.arguments_of(env_kwargs, kwargs)
    entry, wrapping = _entry(known), Wrapping(frame_stack, time_limit, ignore=tuple(ignore), info_mask=info_mask)
    if params:
        if not sources.is_kernel(entry):
            return with_params(_factory(known.name, entry, named(wrappers), kwargs, wrapping), params)
        if entry.gymnasium_id is not None:
            from headrace.envs.compiled.drawn_port import DrawnPort

            entry = partial(DrawnPort, entry if time_limit is None else limited(entry, time_limit))
        kwargs["params"] = params
    if compiled and sources.is_kernel(entry) and entry.gymnasium_id is None:
        kwargs["compiled"] = True
    return _factory(known.name, entry, named(wrappers), kwargs, wrapping)


def adapted(given: EnvArgument) -> Env:
    """Make an Env of an existing object: a gymnasium.vector.VectorEnv, a simulator (envs.vector.simulators), or an Env,
    which is returned as it is. Raises TypeError for anything else."""
    from headrace.envs.vector import libraries

    return libraries.adapted(given)


def named(wrappers: Wrappers) -> Functions:
    """Resolve wrappers to functions. Raises ValueError for unknown names, TypeError for other objects."""
    if isinstance(wrappers, str):
        raise TypeError(f"wrappers is {wrappers!r}: give a list, [{wrappers!r}]")
    for wrapper in wrappers:
        if isinstance(wrapper, str):
            member(wrapper, "wrapper")
        elif not callable(wrapper):
            raise TypeError(f"{wrapper!r} is no wrapper: give a class or a function, or file.py:Class")
    return [NamedWrapper(absolute_reference(x)) if isinstance(x, str) else x for x in wrappers]


def entry_of(source: Source) -> Entry | str:
    """The class, function or Gymnasium spec that a source names. Raises ValueError for an unknown name."""
    return _entry(spec(source))


def can_render(source: Source) -> bool:
    """Tell whether a source's environments can be recorded as videos, as far as its class or its parameters show."""
    known = spec(source)
    return sources.can_render(known.name, _entry(known))


def comes_as_vector(source: Source) -> bool:
    """Tell whether make() makes a source's environments as one vector, rather than one by one."""
    known = spec(source)
    return sources.comes_as_vector(known.name, _entry(known))


class Listing(NamedTuple):
    """An entry of the list of `headrace envs`."""

    name: str
    observation_space: Space
    action_space: Space
    backends: tuple[str, ...]
    source: str  # "headrace.envs.builtin.cartpole:CartPole"


def listing() -> list[Listing]:
    """All registered environments, except those registered only for their settings. Imports them, and makes Gymnasium's
    once for their spaces."""
    return [_listed(spec(name)) for name in names() if spec(name).listed]


def _listed(known: Spec) -> Listing:
    entry = _entry(known)
    source = known.entry if isinstance(known.entry, str) else sources.reference(known.entry)
    if not sources.is_kernel(entry):
        env = _factory(known.name, entry, (), {})()
        env.close()
        return Listing(known.name, env.observation_space, env.action_space, ("inline",), source)
    backends = ("cpu", "cuda", *(("torch",) if _runs_on_torch(entry) else ()), "inline")
    return Listing(known.name, entry.observation_space, entry.action_space, backends, source)


def _runs_on_torch(cls: type[KernelEnv]) -> bool:
    from headrace.kernels.language.errors import EnvError
    from headrace.kernels.language.read import read
    from headrace.kernels.targets.torch.env import batched

    try:
        batched(read(cls), torch.device("cpu"))
    except EnvError:  # it branches
        return False
    return True


def _entry(known: Spec) -> Entry | str:
    """The class, function or Gymnasium spec behind a name."""
    entry = known.entry
    if not isinstance(entry, str):
        return entry
    if entry.startswith(sources.ENVPOOL):
        return entry
    if (simulator := by_library.of_name(entry)) is not None:
        return simulator
    if (known_id := sources.registered(entry.removeprefix(sources.MUJOCO))) is not None:
        return known_id
    if ":" in entry or entry.endswith(".py"):
        return sources.find(entry)
    raise unknown(entry)


def _compiled_backend(backend: str, device: str | torch.device) -> tuple[str, torch.device]:
    """The backend and the device that compiled environments run on."""
    if backend == "cpu" and str(device) != "cpu":
        raise ValueError(f"the cpu backend does not run on device {str(device)!r}: leave one of them out")
    if backend == "cuda" and str(device) == "cpu":  # the default of device
        device = "cuda"
    where = resolve(device)
    if backend == "auto":
        backend = where.type if where.type in ("cpu", "cuda") else "torch"
    return backend, where


def _vector(
    name: str,
    entry: Entry | str,
    num_envs: int,
    device: str | torch.device,
    wrappers: Wrappers,
    kwargs: Settings,
    ignore: Sequence[str],
    given: Settings,
) -> Env:
    """Make a vector environment. given: options of compiled ones, for functions that have parameters of these names."""
    from headrace.envs.vector import libraries

    if refused := sorted(given.keys() - {*sources.parameters_of(entry)}):
        names = ", ".join("threads" if name == "num_threads" else name for name in refused)
        raise ValueError(f"{name} comes as a vector of environments, which takes no {names}: leave them out")

    if sources.is_kernel(entry) and entry.gymnasium_id is not None:
        entry = gymnasium.registry[entry.gymnasium_id]
    if not sources.comes_as_vector(name, entry):
        raise ValueError(f"{name} does not come as a vector of environments: use the backend 'inline' or 'workers'")
    if wrappers:
        raise TypeError(f"{name} comes as a vector of environments, which takes no wrappers: leave them out")
    where = resolve(device)
    env = libraries.make(name, entry, num_envs, {**kwargs, **given}, ignore)
    env.made_with = {**env.made_with, **({"env_kwargs": kwargs} if kwargs else {})}
    return _seen_from(where, env)


def _seen_from(where: torch.device, env: Env) -> Env:
    """Wrap an env on the CPU in a DeviceEnv for another device. Any other env is returned as it is."""
    if where.type == "cpu" or env.device.type != "cpu":
        return env
    from headrace.envs.wrappers.device_env import DeviceEnv

    try:
        return DeviceEnv(env, where)
    except BaseException:
        env.close()
        raise


def _regrouped(env: Env, group_by: Grouping) -> Env:
    """Give a compiled env other groups of agents than its class has."""
    if env.num_agents == 1:
        raise ValueError(f"{env.name} has one agent, and group_by={group_by!r} is for several: leave it out")
    env.groups = grouped(dict.fromkeys(env.agents, (env.observation_space, env.action_space)), group_by)
    return env


def _refuse_compiled_options(name: str, backend: str, threads: int | None) -> None:
    """Raise ValueError for options of compiled environments that are given for others."""
    if backend not in ("auto", "inline", "workers"):
        raise ValueError(f"{name} is a Gymnasium environment, which the {backend} backend cannot compile: use 'inline'")
    if threads is not None:
        raise ValueError(f"{name} runs uncompiled, where threads={threads} has no meaning: leave it out")


def _factory(
    name: str, entry: Entry | str, wrappers: Functions, kwargs: Settings, wrapping: Wrapping = UNWRAPPED
) -> Callable[[], gymnasium.Env]:
    if wrapping.time_limit is not None:
        if sources.has_a_limit(entry):
            kwargs = {"max_episode_steps": wrapping.time_limit, **kwargs}
        elif sources.is_kernel(entry):
            entry = limited(entry, wrapping.time_limit)

    if isinstance(entry, Several):
        kinds = [spec(source) for source in entry.factories]
        return Several([_factory(kind.name, _entry(kind), wrappers, kwargs, wrapping) for kind in kinds])

    def build() -> gymnasium.Env:
        env = sources.build(name, entry, kwargs)
        for wrapper in wrappers:
            env = wrapper(env)
        return wrapped(env, wrapping)

    return build


def factory_elsewhere(
    known: Spec, wrappers: Functions, kwargs: Settings, wrapping: Wrapping
) -> Callable[[], gymnasium.Env]:
    """Same as _factory(), for another process, which loads a source file again."""
    place, name = elsewhere(known), known.name
    if not isinstance(place, str):
        return _factory(name, _entry(known), wrappers, kwargs, wrapping)

    def build() -> gymnasium.Env:  # without `known`, whose class the other process may not import by its module's name
        return _factory(name, sources.find(place), wrappers, kwargs, wrapping)()

    return build


def elsewhere(known: Spec) -> Maker | Entry:
    """The source for another process: the absolute path of a source file, otherwise the source itself."""
    entry = known.entry
    if isinstance(entry, type) and is_from_file(sys.modules.get(entry.__module__)):
        entry = sources.reference(entry)
    if not (isinstance(entry, str) and ".py" in entry):
        return _entry(known)
    return absolute_reference(entry)
