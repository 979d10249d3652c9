"""Resolve sources of environments: names, ids, `file.py:Class`, classes, functions."""

from __future__ import annotations

import ast
import copy
import functools
import importlib
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

import gymnasium

from headrace.core.packages import how_to_install
from headrace.core.processes.state import shown as shown_path
from headrace.core.source_text import parse
from headrace.core.text import shown
from headrace.core.types import Settings
from headrace.core.user_names import Misnamed, by_module, import_user_module, is_from_file
from headrace.envs.base import MultiAgentEnv
from headrace.envs.compiled.kernel_env import KernelEnv

EnvSpec = gymnasium.envs.registration.EnvSpec
MOST = 6  # largest number of names in a message
ATARI = "ALE/"  # ids of Atari games begin so: ALE/Pong-v5
MOVED = {"pettingzoo.mpe": "mpe2"}  # packages of environments that have other names now
OLD = (
    ": derive a class from gymnasium.Env that calls its reset() and step(), and returns (observation, info) and "
    "(observation, reward, terminated, truncated, info); for environments of the package gym, Shimmy has such classes"
)
_registered: dict[ModuleType, dict[str, EnvSpec]] = {}  # by importing a module: other files have the same ids
UNTOLD = {"<lambda>", "make", "make_env", "_make_env", "env", "env_fn", "create_env", "build_env", "get_env"}
UNTOLD |= {"thunk", "_thunk", "_init", "init", "factory"}  # names of functions that do not say what they make
ENVPOOL = "envpool/"  # and EnvPool's tasks, here, so: envpool/Pong-v5
MUJOCO = "mujoco/"  # and Gymnasium's MuJoCo tasks by compiled loops: mujoco/Hopper-v5
Entry = type | Callable[..., gymnasium.Env] | EnvSpec


def find(source: str) -> Entry:
    """The class, function or Gymnasium spec that `file.py:Class`, `package.module:Class` or `module:Id-v0` names.

    Raises FileNotFoundError for a missing file, ImportError for a missing module, ValueError for a missing class in it.
    """
    place, _, name = source.rpartition(":")
    if not place:  # a file without a class
        place, name = source, ""
    if (meant := _file_meant(place) or _moved(place)) is not None:
        raise Misnamed(f"there is no module {place!r}; write {meant}:{name}", source, f"{meant}:{name}")
    before = {**gymnasium.registry}
    module = import_user_module(place)
    ids = _registered.setdefault(module, {})
    ids |= {name: spec for name, spec in gymnasium.registry.items() if before.get(name) is not spec}
    found = getattr(module, name, None) if name else None
    if callable(found):
        return found
    if spec := ids.get(name) or gymnasium.registry.get(name):  # importing the module has registered it
        return _of_file(module, place, spec)
    raise _no_class(module, place, name)


def _of_file(module: ModuleType, place: str, spec: EnvSpec) -> EnvSpec:
    """The spec, with the class itself where it names it by a module's name that another file has."""
    point, own = spec.entry_point, Path(place).stem
    if not place.endswith(".py") or module.__name__ == own or not isinstance(point, str) or point.split(":")[0] != own:
        return spec
    spec = copy.copy(spec)
    spec.entry_point = getattr(module, point.split(":")[1])
    return spec


def registered(name: str) -> EnvSpec | None:
    """Gymnasium's spec of an id; None where there is none. For an Atari game, imports ale_py, which registers them.

    Raises ImportError where that is not installed.
    """
    if name.startswith(ATARI) and name not in gymnasium.registry:
        try:
            importlib.import_module("ale_py")
        except ImportError as error:
            raise ImportError(f'{name} needs ale-py, which is not installed: pip install "headrace[atari]"') from error
    return gymnasium.registry.get(name)


def can_render(name: str, entry: Entry | str) -> bool:
    """Tell whether environments can render images, as far as a class's render modes or a function's parameters show."""
    if is_kernel(entry):
        if entry.gymnasium_id is None:
            return hasattr(entry, "render") or hasattr(entry, "pixel")
        entry = gymnasium.registry[entry.gymnasium_id]
    maker: object = entry
    if isinstance(entry, EnvSpec):
        point = entry.entry_point
        maker = gymnasium.envs.registration.load_env_creator(point) if isinstance(point, str) else point
    elif comes_as_vector(name, entry):
        return False
    if inspect.isclass(maker) and "rgb_array" not in getattr(maker, "metadata", {}).get("render_modes", ()):
        return False
    taken = inspect.signature(maker).parameters if callable(maker) else {}
    return "render_mode" in taken or any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())


def comes_as_vector(name: str, entry: Entry | str) -> bool:
    """Tell whether this makes a vector environment: an id with a vector entry point, a task of EnvPool or MuJoCo, a
    gymnasium.vector.VectorEnv class, or another class or function with a parameter `num_envs`."""
    if name.startswith((ENVPOOL, MUJOCO)):
        return True
    if isinstance(entry, EnvSpec):
        return entry.vector_entry_point is not None
    if inspect.isclass(entry) and issubclass(entry, KernelEnv | gymnasium.Env | gymnasium.vector.VectorEnv):
        return issubclass(entry, gymnasium.vector.VectorEnv)
    return "num_envs" in parameters_of(entry)


def reference(thing: Callable) -> str:
    """The name with which find() returns this class or function: `package.module:Class` or `file.py:Class`.

    A partial, a callable object and an object's method cannot be found by a name. Theirs is in angle brackets, as a
    lambda's.
    """
    inner: Any = thing
    while isinstance(inner, functools.partial):
        inner = inner.func
    name, owner = getattr(inner, "__qualname__", type(inner).__qualname__), getattr(inner, "__self__", None)
    bound = owner is not None and not isinstance(owner, type | ModuleType)
    if inner is not thing or bound or not hasattr(inner, "__qualname__"):
        name = f"<{name.strip('<>')}>"
    module = sys.modules.get(inner.__module__)
    path = getattr(module, "__file__", None)
    if path is not None and (inner.__module__ == "__main__" or is_from_file(module)):
        return f"{path}:{name}"
    return f"{inner.__module__}:{name}"


def short_name(name: str, source: Any) -> str:
    """The name of an environment without its file or module: of PettingZoo's `parallel_env` the module's, and of a
    lambda and a function such as make_env() that of what it makes. source: the function, where there is one."""
    place, _, own = name.rpartition(":")
    own = own.rpartition("<locals>.")[2]  # of a function inside others
    if own == "parallel_env":
        return place.rpartition(".")[2]
    if own not in UNTOLD:
        return own
    stem = Path(place).stem if place.endswith(".py") else place.rpartition(".")[2]
    return _made_by(source) or (stem if own == "<lambda>" else own)


def _made_by(source: Any) -> str:
    """The first class of environments, or else the first id of Gymnasium, in a function's code; empty for none."""
    code = getattr(source, "__code__", None)
    if code is None:
        return ""
    seen = inspect.getclosurevars(source)
    spaces = [{**seen.globals, **seen.nonlocals}]
    spaces += [vars(module) for module in spaces[0].values() if isinstance(module, ModuleType)]
    named = [space[name] for name in (*code.co_names, *code.co_freevars) for space in spaces if name in space]
    kinds = [kind for kind in named if isinstance(kind, type) and issubclass(kind, gymnasium.Env | KernelEnv)]
    classes = [kind.__name__ for kind in kinds if not issubclass(kind, gymnasium.Wrapper)]
    ids = [text for text in code.co_consts if isinstance(text, str) and text in gymnasium.registry]
    return next(iter([*classes, *ids]), "")


def arguments_of(env_kwargs: Settings | None, kwargs: Settings) -> dict[str, Any]:
    """The arguments for making an environment: env_kwargs, and keywords that are not settings of make().

    Raises TypeError for a name in both, and if env_kwargs is not a dict."""
    if env_kwargs is not None and not isinstance(env_kwargs, Mapping):
        raise TypeError(f"env_kwargs is {shown(env_kwargs, 60)}: give a dict, the environment's arguments by name")
    if twice := sorted({*(env_kwargs or {})} & {*kwargs}):
        raise TypeError(f"{', '.join(twice)} is given both in env_kwargs and as a keyword: leave one of them out")
    return {**(env_kwargs or {}), **kwargs}


def build(name: str, entry: Entry | str, kwargs: Settings) -> gymnasium.Env:
    """Make one gymnasium.Env from the result of find(). For a KernelEnv it is the reference that it was ported from, or
    plain Python.

    Raises ImportError for a missing package, TypeError if a function returns something else.
    """
    if is_kernel(entry):
        if entry.gymnasium_id is None:
            from headrace.envs.compiled.single_env import single

            return single(entry, **kwargs)
        entry = gymnasium.registry[entry.gymnasium_id]
    if comes_as_vector(name, entry) and not isinstance(entry, EnvSpec):
        one = f"hr.make({name!r}, 1)" if "<" not in name else "hr.make() with num_envs=1"
        raise TypeError(f"{name} comes as a vector of environments, and none is made alone: {one} is a vector of one")
    if isinstance(entry, EnvSpec):
        if entry.id.startswith(ATARI):
            from headrace.envs.gym import atari

            registered(entry.id)  # in a worker process nothing has imported what registers it
            return atari.game(entry.id, **kwargs)
        with mujoco_warns_once(entry), installs_named(name, entry):
            return gymnasium.make(entry, **kwargs)
    assert callable(entry)
    env = entry(**kwargs)
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise TypeError(f"{name} gave {env!r}, a vector environment: let the function take a parameter `num_envs`")
    if is_turn_based(env):
        if getattr(env, "metadata", {}).get("is_parallelizable"):
            raise TypeError(f"in {env} agents take turns: give its parallel_env, in which all act at once")
        from pettingzoo.utils.conversions import turn_based_aec_to_parallel

        env = turn_based_aec_to_parallel(env)
    if not isinstance(env, gymnasium.Env | MultiAgentEnv):
        old = hasattr(env, "reset") and hasattr(env, "step")
        raise TypeError(
            f"{name} gave {shown(env, 80)} where a gymnasium.Env or a pettingzoo.ParallelEnv was expected"
            f"{OLD if old else ''}"
        )
    return env  # type: ignore[return-value]  # one of several agents is a MultiAgentEnv


@contextmanager
def installs_named(name: str, entry: EnvSpec) -> Iterator[None]:
    """Raise an error with the remedy if making an environment within this block needs a missing module.

    Raises ImportError or Misnamed. Other ModuleNotFoundErrors are raised unchanged, since only their tracebacks show
    the import.
    """
    try:
        yield
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        point, missing = entry.entry_point, getattr(error, "name", None)
        module = point.partition(":")[0] if isinstance(point, str) else getattr(point, "__module__", "")
        if missing and f"{module}.".startswith(f"{missing}."):
            place = name.rpartition(":")[0]
            if place.endswith(".py") and (meant := by_module(Path(place).resolve(), missing)):
                raise meant from error
            what = f"{entry.id} is registered with the entry point {point!r}"
            raise ImportError(f"{what}, and there is no module {missing!r}: is it installed?") from error
        own = "" if missing else str(error)  # Gymnasium's errors name extras, but not those of this package
        if how := how_to_install(module) or own:
            raise ImportError(f"{name} needs a package that is not installed: {how}") from error
        raise


@contextmanager
def mujoco_warns_once(entry: EnvSpec) -> Iterator[None]:
    """Turn MuJoCo's messages about a model into warnings, which Python shows once. Messages about deprecated features
    in Gymnasium's models are dropped, since users cannot change these.

    MuJoCo would print them for each environment, and write them to a file."""
    if ".mujoco" not in str(entry.entry_point) or importlib.util.find_spec("mujoco") is None:
        yield
        return
    mujoco = importlib.import_module("mujoco")
    said: list[str] = []
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(said.append)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)
    theirs = str(entry.entry_point).startswith("gymnasium.")
    for text in (text for text in said if not (theirs and "deprecated" in text)):
        warnings.warn(f"MuJoCo: {text}", stacklevel=1)


def is_kernel(thing: Entry | str) -> TypeGuard[type[KernelEnv]]:
    """Tell whether an entry is a KernelEnv class, which can be compiled."""
    return inspect.isclass(thing) and issubclass(thing, KernelEnv)


def is_module(name: str) -> bool:
    """Tell whether this is the dotted name of an importable module."""
    if not all(part.isidentifier() for part in name.split(".")):
        return False
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def in_module(name: str) -> str:
    """Advice on naming an environment of a module. Imports the module."""
    try:
        module = importlib.import_module(name)
    except Exception as error:
        return f"importing it raised {type(error).__name__}: {error}"
    if hasattr(module, "parallel_env"):
        return f"name what makes an environment in it: {name}:parallel_env"
    if hasattr(module, "raw_env"):  # PettingZoo's name for an environment without wrappers
        return f"name what makes an environment in it: {name}:env, whose agents take turns"
    found = [f"{name}:{one}" for one in _environments_of(module)]
    return f"name what makes an environment in it: {' or '.join(found[:MOST]) or f'{name}:Class'}"


def is_turn_based(env: object) -> bool:
    """Tell whether this is a pettingzoo.AECEnv, without importing PettingZoo."""
    return hasattr(env, "agent_iter") and hasattr(env, "last") and hasattr(env, "possible_agents")


def has_a_limit(entry: Entry | str) -> bool:
    """Tell whether gymnasium.make makes this environment or its reference, and so limits its episodes."""
    port = is_kernel(entry) and entry.gymnasium_id is not None
    return port or (isinstance(entry, EnvSpec) and not entry.id.startswith(ATARI))


def parameters_of(entry: Entry | str) -> Collection[str]:
    """The names of the parameters of a class or a function; none where they are not known."""
    try:
        return {*inspect.signature(entry).parameters} if callable(entry) else ()
    except (TypeError, ValueError):  # some functions written in C have no signature
        return ()


def _is_environment(thing: Callable) -> bool:
    return inspect.isclass(thing) and (
        issubclass(thing, KernelEnv | gymnasium.Env) or "num_envs" in parameters_of(thing)
    )


def _file_meant(place: str) -> str | None:
    """The file that was meant by `folder/file` without .py, or by `file.py:` before a second colon."""
    file = f"{place.rstrip(':').removesuffix('.py')}.py"
    return file if {":", "/"} & {*place} and file != place and Path(file).is_file() else None


def _moved(place: str) -> str | None:
    """The module that has taken the place of one that is gone."""
    package, _, own = place.rpartition(".")
    return f"{MOVED[package]}.{own}" if package in MOVED and not is_module(place) else None


def _no_class(module: ModuleType, place: str, name: str) -> Misnamed:
    """The error for a module without the requested class, with the classes that it has."""
    given = f"{place}:{name}" if name else place
    place = str(shown_path(place)) if place.endswith(".py") else place
    wrong = f"there is no environment {name!r} in {place}" if name else f"{place} does not say which class in it to use"
    if is_module(inside := f"{place}.{name}"):
        return Misnamed(f"{wrong}: it is a module; {in_module(inside)}", given)
    found = _functions_near(name, module) or _environments_of(module)
    if not found and is_module(inside := f"{place}.envs"):  # where many packages register their ids
        found = _environments_of(importlib.import_module(inside))
        place = inside
    if not found:
        has = "it has no subclass of headrace.KernelEnv or gymnasium.Env, and registers no id of Gymnasium"
        return Misnamed(f"{wrong}: {has}", given)
    names = [f"{place}:{one}" for one in found]
    return Misnamed(f"{wrong}: use {' or '.join(names[:MOST])}", given, names[0] if len(names) == 1 else "")


def _functions_near(name: str, module: ModuleType) -> list[str]:
    """Functions of a module that may make environments, such as PettingZoo's `parallel_env`."""
    functions = [key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")]
    return get_close_matches(name, functions, n=1, cutoff=0.8)


def _environments_of(module: ModuleType) -> list[str]:
    """Classes of environments that a module defines, and ids that it registers with Gymnasium."""
    found = [
        key for key, value in vars(module).items() if _is_environment(value) and value.__module__ == module.__name__
    ]
    with suppress(OSError, UnicodeDecodeError, SyntaxError):
        text = Path(module.__file__ or "").read_text(encoding="utf-8")
        found += [known for known in ids_in(text) if known in gymnasium.registry]
    return found


def ids_in(text: str) -> list[str]:
    """The ids in calls of gymnasium.register() in a file's text, the lowest version first."""
    found = []
    for call in ast.walk(parse(text)):
        if not isinstance(call, ast.Call) or getattr(call.func, "attr", getattr(call.func, "id", "")) != "register":
            continue
        owner = getattr(getattr(call.func, "value", None), "id", "")
        named = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "id")]
        if owner not in ("hr", "headrace"):  # whose names are not Gymnasium's
            found += [one.value for one in named if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return sorted(found)
