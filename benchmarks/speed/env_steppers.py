"""One library stepping one environment: started by env_throughput.py in a fresh process for each library.

A stepper makes N environments and returns a function that steps them, the number of steps per call, the share of these
that are valid, what runs them, and on how many threads. Random actions are drawn beforehand.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import Neighbours, cores, throughput, versions

DRAWN = 64  # rows of actions, used in turn
MOST_BYTES = 2**29  # of the observations in a rollout
PROBE = 256  # vector steps in which endings are counted


class Stepper(NamedTuple):
    step: Callable[[], object]
    steps_per_call: int
    valid_share: float
    backend: str
    threads: int
    close: Callable[[], object] = lambda: None


def headrace(config: str, env_id: str, num_envs: int) -> Stepper:
    """A whole rollout a call, as the collector does, into the columns that the learner reads."""
    import torch

    from headrace.data.rollout import Rollout
    from headrace.data.spaces import action_column, env_columns
    from headrace.envs import make

    threads = cores() if config == "threaded" else 1
    torch.set_num_threads(threads)  # it carries the edge of a rollout to the next one
    env = make(env_id, num_envs, threads=threads)
    size = np.prod(env.observation_space.shape) * env.observation_space.dtype.itemsize
    # as one would train with so many environments; of images as many rows as memory is there for
    num_steps = int(max(4, min(128, 524_288 // num_envs, MOST_BYTES // (num_envs * size))))
    columns = env_columns(env.observation_space) | {"action": action_column(env.action_space)}
    rollout = Rollout(num_steps, env.num_envs, columns, env.device)
    env.reset(rollout, 0)
    drawn = torch.from_numpy(draw_actions(env.action_space, env.num_envs, num_steps))
    rollout.action[:] = drawn.to(rollout.action.dtype)

    def step() -> None:
        for t in range(num_steps):
            env.step(rollout, t)
        rollout.continue_from(rollout)

    step()
    valid, calls = 0, max(1, PROBE // num_steps)
    for _ in range(calls):
        step()
        valid += rollout.valid_steps()
    share = valid / (calls * num_steps * env.num_envs)
    return Stepper(step, num_steps * env.num_envs, share, env.backend, threads, env.close)


def gymnasium(config: str, env_id: str, num_envs: int) -> Stepper:
    """Gymnasium's own ways: a plain loop over one environment, or its vector environments (next-step autoreset)."""
    import gymnasium as gym

    def one() -> gym.Env:
        if env_id == "PixelPendulum":
            return images(gym.make("Pendulum-v1", disable_env_checker=True, render_mode="rgb_array"))
        return gym.make(env_id, disable_env_checker=True)

    if config == "loop":
        return plain_loop(one())
    if config == "vectorised":
        env = gym.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point")
    elif config == "async":
        env = gym.vector.AsyncVectorEnv([one] * num_envs)
    else:
        env = gym.vector.SyncVectorEnv([one] * num_envs)
    env.reset(seed=0)
    threads = num_envs if config == "async" else 1
    return vector(env, env.single_action_space, num_envs, "process" if config == "async" else "python", threads)


def images(env: Any) -> Any:
    """Gymnasium's own way to what PixelPendulum shows: two grayscale images of 42 x 42, from the renderer's."""
    from gymnasium import wrappers

    drawn = wrappers.AddRenderObservation(env, render_only=True)
    small = wrappers.ResizeObservation(wrappers.GrayscaleObservation(drawn), (42, 42))
    return wrappers.FrameStackObservation(small, 2)


def plain_loop(env: Any) -> Stepper:
    """One environment, stepped and reset in a loop: every step is valid."""
    actions = list(draw_actions(env.action_space, 1)[:, 0])
    env.reset(seed=0)

    def step() -> None:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return Stepper(step, len(actions), 1.0, "python", 1, env.close)


def envpool(config: str, env_id: str, num_envs: int) -> Stepper:
    """EnvPool's synchronous mode with its own choice of threads (next-step autoreset)."""
    import envpool as library

    env = library.make_gymnasium(env_id, num_envs=num_envs, seed=0)
    env.reset()
    return vector(env, env.action_space, num_envs, "c++", cores())


def vector(env: Any, space: Any, num_envs: int, backend: str, threads: int) -> Stepper:
    """Any env with Gymnasium's vector API and next-step autoreset: the step after an ending is not valid."""
    actions, turn = draw_actions(space, num_envs), 0

    def step() -> Any:
        nonlocal turn
        turn += 1
        return env.step(actions[turn % DRAWN])

    endings = 0
    probes = max(24, min(PROBE, 4_194_304 // num_envs))
    for counting in [False] * probes + [True] * probes:  # not at once, because the first episodes end together
        _, _, terminated, truncated, _ = step()
        endings += counting * int(np.count_nonzero(terminated | truncated))
    share = 1 - endings / (probes * num_envs)
    return Stepper(step, num_envs, share, backend, threads, env.close)


def gymnax(config: str, env_id: str, num_envs: int) -> Stepper:
    """A jitted scan that gives whole trajectories back (same-step autoreset: every step is valid)."""
    import gymnax as library
    import jax

    env, params = library.make(env_id)
    num_steps = max(8, min(1024, 2_097_152 // num_envs))
    key = jax.random.PRNGKey(0)
    actions = np.resize(draw_actions(env.action_space(params), num_envs), (num_steps, num_envs, *_shape(env, params)))
    actions = jax.numpy.asarray(actions)

    @jax.jit
    def roll(state: Any, key: Any) -> Any:
        def body(carry: Any, action: Any) -> Any:
            state, key = carry
            key, use = jax.random.split(key)
            result = jax.vmap(env.step, (0, 0, 0, None))(jax.random.split(use, num_envs), state, action, params)
            return (result[1], key), (result[0], *result[2:4])

        return jax.lax.scan(body, (state, key), actions)

    _, state = jax.vmap(env.reset, (0, None))(jax.random.split(key, num_envs), params)
    carry = (state, key)

    def step() -> None:
        nonlocal carry
        carry, _ = jax.block_until_ready(roll(*carry))

    return Stepper(step, num_steps * num_envs, 1.0, "xla", cores())


def _shape(env: Any, params: Any) -> tuple[int, ...]:
    return tuple(env.action_space(params).shape)


def draw_actions(space: Any, num_envs: int, num_steps: int = DRAWN) -> np.ndarray:
    """Uniform actions [T, N, ...] of a Discrete or a bounded Box space of any of the libraries."""
    random = np.random.default_rng(0)
    if hasattr(space, "n"):
        return random.integers(0, int(space.n), (num_steps, num_envs)).astype(np.int32)
    low, high = np.asarray(space.low), np.asarray(space.high)
    return random.uniform(low, high, (num_steps, num_envs, *space.shape)).astype(np.float32)


STEPPERS = {"headrace": headrace, "gymnasium": gymnasium, "envpool": envpool, "gymnax": gymnax}


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("library", choices=STEPPERS)
    flags.add_argument("config")
    flags.add_argument("--env", required=True)
    flags.add_argument("--num-envs", nargs="+", type=int, required=True)
    flags.add_argument("--seconds", type=float, required=True)
    options = flags.parse_args()
    rows = []
    for num_envs in options.num_envs:
        neighbours = Neighbours()
        stepper = STEPPERS[options.library](options.config, options.env, num_envs)
        rate = throughput(stepper.step, stepper.steps_per_call * stepper.valid_share, options.seconds)
        shape = {"num_envs": num_envs, "threads": stepper.threads, "valid_share": stepper.valid_share}
        rows.append({"backend": stepper.backend, **shape, **rate, "others_cpu": neighbours.busy()})
        stepper.close()
    print(json.dumps({"rows": rows, "versions": versions()}))


if __name__ == "__main__":
    main()
