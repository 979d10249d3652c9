"""One library training PPO with an LSTM, in a process and an interpreter of its own: started by recurrent.py."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from benchmarks.common import throughput, versions

LIBRARIES = {"headrace": "torch", "sb3-contrib": "sb3_contrib"}  # name -> what its interpreter can import
ENV, ENVS, STEPS, MINIBATCH, EPOCHS = "CartPole-v1", 8, 128, 128, 10


def headrace_rate(size: int, length: int, seconds: float) -> dict[str, Any]:
    """Steps a second of whole iterations."""
    from headrace import Trainer

    trainer = Trainer(
        "ppo",
        ENV,
        num_envs=ENVS,
        num_steps=STEPS,
        minibatch_size=MINIBATCH,
        epochs=EPOCHS,
        recurrent="lstm",
        rnn_size=size,
        sequence_length=length,
        hidden=(),
        learning_rate=3e-4,
        clip=0.2,
        max_grad_norm=0.5,
        normalize_observation=False,
        total_steps=10**9,
    )
    iterations = []

    def iterate() -> None:
        iterations.append(trainer.iterate())

    found = throughput(iterate, ENVS * STEPS, seconds)
    counted = trainer.steps / (len(iterations) * ENVS * STEPS)  # rows that only reset an environment do not count
    return found | {name: rate * counted for name, rate in found.items() if name.startswith("sps")}


def sb3_rate(size: int, seconds: float) -> dict[str, Any]:
    """The same of sb3-contrib."""
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.env_util import make_vec_env

    network = {"lstm_hidden_size": size, "net_arch": []}
    settings = {"n_steps": STEPS, "batch_size": MINIBATCH, "n_epochs": EPOCHS, "device": "cpu"}
    model = RecurrentPPO("MlpLstmPolicy", make_vec_env(ENV, ENVS), policy_kwargs=network, **settings)
    return throughput(lambda: model.learn(ENVS * STEPS, reset_num_timesteps=False), ENVS * STEPS, seconds)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("library", choices=LIBRARIES)
    flags.add_argument("size", type=int)
    flags.add_argument("--sequence-length", type=int, default=STEPS)
    flags.add_argument("--seconds", type=float, default=1.0)
    options = flags.parse_args()
    began = time.time()
    if options.library == "headrace":
        row = headrace_rate(options.size, options.sequence_length, options.seconds)
    else:
        row = sb3_rate(options.size, options.seconds)
    print(json.dumps({"library": options.library, "wall_s": time.time() - began, **row, "versions": versions()}))


if __name__ == "__main__":
    main()
