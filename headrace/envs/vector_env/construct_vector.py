"""make_vec(): any environment as a gymnasium.vector.VectorEnv; and what Gymnasium makes of ids like headrace/Catch."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import gymnasium
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from headrace.core.setting_types import fit
from headrace.core.types import Settings
from headrace.envs import sources
from headrace.envs.construct import Wrappers, entry_of, factory, factory_elsewhere, make
from headrace.envs.gym.several import Made, factory_of
from headrace.envs.gym.wrapping import Wrapping
from headrace.envs.registry import Source, spec

if TYPE_CHECKING:
    from headrace.envs.vector_env.compiled_vector import Output
    from headrace.envs.workers.process import Workers


def make_vec(
    source: Source,
    num_envs: int | None = None,
    *,
    autoreset_mode: AutoresetMode | Literal["NextStep", "SameStep", "Disabled"] = AutoresetMode.NEXT_STEP,
    output: Output = "numpy",
    copy: bool = True,
    episode_statistics: bool = False,
    device: str | torch.device = "cpu",
    backend: str = "auto",
    threads: int | None = None,
    params: Settings | None = None,
    workers: int | Workers | None = None,
    step_timeout: float = 60.0,
    wrappers: Wrappers = (),
    frame_stack: int = 1,
    time_limit: int | None = None,
    env_kwargs: Settings | None = None,
    **kwargs: Any,
) -> VectorEnv:
    """N environments as a gymnasium.vector.VectorEnv, for training loops that were written for Gymnasium.

        envs = hr.make_vec("CartPole-v1", 1024)
        observations, infos = envs.reset(seed=1)
        observations, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample())

    source: as for make(). What can be compiled is (CompiledVectorEnv): all environments are stepped in one call. Other
    environments are stepped by gymnasium.vector.SyncVectorEnv, or with workers=k in k processes (WorkerVectorEnv),
    which gives the same bits. Infos are those of SyncVectorEnv; in SAME_STEP with `final_obs` and `final_info`.
    episode_statistics: whether they also have the statistics of episodes that end under `episode`, as those of
    Gymnasium's vector wrapper RecordEpisodeStatistics. Returns are sums of the environments' own rewards, as they are
    before wrappers normalise, clip or shape them.
    output: "numpy" or "torch"; the two share memory, so that neither costs a copy. copy: whether outputs are copies, or
    memory that is overwritten. DISABLED autoreset is for environments that are not compiled.
    device, backend ("auto", "cpu", "cuda", "torch", "inline"), threads, params, wrappers, frame_stack, time_limit,
    step_timeout, env_kwargs and kwargs: as for make().

    source may be a list, as SyncVectorEnv takes: environment i is made by number i modulo theirs. num_envs: None for as
    many as a list has, or one.

    Raises what make() raises; ValueError for several agents, for sources that come as a vector already, and for a
    function that gives the same environment again. step() raises TypeError for rewards and flags that are no numbers.
    """
    known, kwargs = spec(source), sources.arguments_of(env_kwargs, kwargs)
    entry = entry_of(source)
    if num_envs is None:
        num_envs = len(source) if isinstance(source, list | tuple) else 1
    num_envs = fit("num_envs", num_envs, int)
    if output not in ("numpy", "torch"):
        raise ValueError(f"output must be 'numpy' or 'torch', got {output!r}")
    if sources.comes_as_vector(known.name, entry):
        by_id = isinstance(entry, gymnasium.envs.registration.EnvSpec)
        how = "gymnasium.make_vec()" if by_id else "make(), and step it as docs/robots.md shows"
        raise ValueError(f"{known.name} comes as a vector of environments already: make it with {how}")
    if sources.is_kernel(entry) and backend != "inline" and workers is None:
        options: Settings = {
            "env_kwargs": kwargs,
            "wrappers": wrappers,
            "frame_stack": frame_stack,
            "time_limit": time_limit,
        }
        from headrace.envs.compiled.env import CompiledEnv
        from headrace.envs.vector_env.compiled_vector import CompiledVectorEnv

        env = make(source, num_envs, backend=backend, device=device, threads=threads, params=params, **options)
        assert isinstance(env, CompiledEnv)
        return CompiledVectorEnv(env, autoreset_mode, output, copy, episode_statistics)
    _refuse(known.name, backend, device, threads, params)
    wrapping = {"frame_stack": frame_stack, "time_limit": time_limit}
    vector: Any
    if workers is None:
        from headrace.envs.vector_env.step_numbers import StepNumbers

        single = factory(source, wrappers=wrappers, env_kwargs=kwargs, **wrapping)  # type: ignore[arg-type]
        made = Made(known.name)

        with ExitStack() as there_so_far:

            def new(number: int) -> gymnasium.Env:
                env = StepNumbers(made.new(factory_of(single, number)()), episode_statistics)
                there_so_far.callback(env.close)
                return env

            functions = [partial(new, number) for number in range(num_envs)]
            vector = SyncVectorEnv(functions, copy, autoreset_mode=autoreset_mode)
            there_so_far.pop_all()
    else:
        from headrace.envs.vector_env.worker_vector import WorkerVectorEnv

        elsewhere = factory_elsewhere(known, wrappers, kwargs, Wrapping(**wrapping))  # type: ignore[arg-type]
        vector = WorkerVectorEnv(
            elsewhere, num_envs, known.name, workers, autoreset_mode, copy, step_timeout, episode_statistics
        )
    from headrace.envs.vector_env.vector_wrappers import FinalEpisodes, ToTorch

    if episode_statistics and AutoresetMode(autoreset_mode) is AutoresetMode.SAME_STEP:
        vector = FinalEpisodes(vector)
    return ToTorch(vector) if output == "torch" else vector


def _refuse(name: str, backend: str, device: str | torch.device, threads: int | None, params: Settings | None) -> None:
    """Raise ValueError where options of compiled environments are given for others."""
    given = {"device": str(device) != "cpu", "threads": threads is not None, "params": params is not None}
    if backend not in ("auto", "inline", "workers"):
        raise ValueError(f"{name} is stepped in Python, and not by the backend {backend!r}: leave it out")
    if wrong := [option for option, is_given in given.items() if is_given]:
        raise ValueError(f"{name} is stepped in Python, which takes no {', '.join(wrong)}: leave it out")


def make_registered(source: str, render_mode: str | None = None, **params: Any) -> gymnasium.Env:
    """gymnasium.make("headrace/CartPole-v1"): one environment in plain Python. params: of its Params."""
    from headrace.envs.compiled.single_env import Single

    entry = entry_of(source)
    assert sources.is_kernel(entry)
    return Single(entry, params, render_mode)


def make_registered_vec(
    source: str, num_envs: int, max_episode_steps: int | None = None, render_mode: str | None = None, **options: Any
) -> VectorEnv:
    """gymnasium.make_vec("headrace/CartPole-v1", num_envs=1024): see make_vec() for the options."""
    if render_mode is not None:
        raise ValueError(
            f"a vector of compiled environments renders no images, got render_mode={render_mode!r}: use "
            f'gymnasium.make("headrace/{source}", render_mode="rgb_array")'
        )
    entry: Any = entry_of(source)
    limit = None if max_episode_steps == entry.max_steps else max_episode_steps
    return make_vec(source, num_envs, time_limit=limit, **options)
