"""One library's whole off-policy training, in a process of its own: started by off_policy_loop.py."""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from importlib import import_module
from typing import Any, NamedTuple

from benchmarks.common import throughput, versions

# name -> what its interpreter can import; kernel and gymnasium are Headrace with its own environment or Gymnasium's,
# plain is the first without kernels for policies and learning
LIBRARIES = {
    "kernel": "headrace",
    "gymnasium": "headrace",
    "plain": "headrace",
    "rltools": "rltools",
    "sb3": "stable_baselines3",
    "sbx": "sbx",
}
SIZES = {"64": (64, 100), "256": (256, 256)}  # width of both hidden layers, batch: RLtools' defaults, and Headrace's
OWN = ("kernel", "gymnasium", "plain")


class Work(NamedTuple):
    """Training of a comparison. more: Headrace's other settings. libraries: those that have it."""

    algorithm: str
    env: str
    more: dict[str, Any]
    libraries: tuple[str, ...] = OWN


_DQN = {"double": False, "prioritized": False, "n_steps": 1}
_CARTPOLE = ("dqn", "CartPole-v1")
WORKS = {
    "sac": Work("sac", "Pendulum-v1", {}, tuple(LIBRARIES)),
    "td3": Work("td3", "Pendulum-v1", {}, tuple(LIBRARIES)),
    "ddpg": Work("ddpg", "Pendulum-v1", {}, (*OWN, "sb3", "sbx")),
    "tqc": Work("tqc", "Pendulum-v1", {"critic_hidden": None}),  # as wide as the actor
    "crossq": Work("crossq", "Pendulum-v1", {"critic_hidden": None}),
    "dqn": Work(*_CARTPOLE, _DQN, (*OWN, "sb3", "sbx")),
    "dqn-double": Work(*_CARTPOLE, _DQN | {"double": True}),
    "dqn-prioritized": Work(*_CARTPOLE, _DQN | {"prioritized": True}),
    "dqn-dueling": Work(*_CARTPOLE, _DQN | {"dueling": True}),
    "dqn-layer-norm": Work(*_CARTPOLE, _DQN | {"layer_norm": True}),
    "dqn-gru": Work(*_CARTPOLE, _DQN | {"recurrent": "gru", "sequence_length": 4}),
}
WARM_UP = 1_000  # steps in the replay buffer before the clock starts
CHUNK = 64  # steps of a call


def headrace_rate(name: str, hidden: int, batch: int, seconds: float, library: str) -> dict[str, Any]:
    """Measure Headrace, with rollouts of CHUNK steps and an update after each."""
    from headrace import Trainer
    from headrace.core.fused import plain_only

    work, backend = WORKS[name], "inline" if library == "gymnasium" else "cpu"
    more = {key: (hidden, hidden) if key == "critic_hidden" else value for key, value in work.more.items()}
    trainer = Trainer(
        work.algorithm, work.env, backend=backend, num_envs=1, num_steps=CHUNK, train_freq=1, gradient_steps=1,
        hidden=(hidden, hidden), activation="relu", batch_size=batch, learning_starts=100, normalize_observation=False,
        total_steps=10**9, **more,
    )  # fmt: skip
    with plain_only() if library == "plain" else nullcontext():
        while trainer.steps < WARM_UP:
            trainer.iterate()
        row = throughput(trainer.iterate, CHUNK, seconds)
    trainer.close()
    return row


def sb3_rate(name: str, hidden: int, batch: int, seconds: float, library: str) -> dict[str, Any]:
    """Measure Stable-Baselines3, or SBX, which has its interface."""
    kind = getattr(import_module(library), name.upper())
    settings = {"policy_kwargs": {"net_arch": [hidden, hidden]}, "batch_size": batch, "learning_starts": 100}
    model = kind("MlpPolicy", WORKS[name].env, device="cpu", train_freq=1, gradient_steps=1, **settings)
    model.learn(WARM_UP)
    return throughput(lambda: model.learn(CHUNK, reset_num_timesteps=False), CHUNK, seconds)


def rltools_rate(name: str, hidden: int, batch: int, seconds: float) -> dict[str, Any]:
    """Measure RLtools, which compiles itself for these sizes at the first call. It uses MKL where the packages mkl and
    mkl-include are installed, and is much slower without."""
    import gymnasium
    import rltools
    from gymnasium.wrappers import RescaleAction

    def factory() -> gymnasium.Env:
        env = RescaleAction(gymnasium.make("Pendulum-v1"), -1, 1)
        env.reset(seed=0)
        return env

    sizes = {f"{part}_HIDDEN_DIM": hidden for part in ("ACTOR", "CRITIC")}
    sizes |= {f"{part}_BATCH_SIZE": batch for part in ("ACTOR", "CRITIC")}
    own = {"enable_evaluation": False, "interface_name": f"{name}_{hidden}", "STEP_LIMIT": 1_000_000}
    state = getattr(rltools, name.upper())(factory, **own, **sizes).State(0)

    def step() -> None:
        for _ in range(CHUNK):
            state.step()

    for _ in range(WARM_UP // CHUNK + 1):
        step()
    return throughput(step, CHUNK, seconds)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("library", choices=LIBRARIES)
    flags.add_argument("algorithm", choices=WORKS)
    flags.add_argument("size", choices=SIZES)
    flags.add_argument("--seconds", type=float, required=True)
    options = flags.parse_args()
    work = (options.algorithm, *SIZES[options.size], options.seconds)
    if options.library == "rltools":
        row = rltools_rate(*work)
    elif LIBRARIES[options.library] == "headrace":
        row = headrace_rate(*work, options.library)
    else:
        row = sb3_rate(*work, LIBRARIES[options.library])
    print(json.dumps({"library": options.library, **row, "versions": versions()}))


if __name__ == "__main__":
    main()
