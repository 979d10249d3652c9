"""One training of quickstart_return.py: PROGRAM ENV STEPS SEED PACKAGES WANTED. Prints one JSON object."""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import torch

PIECE = 2048  # steps between two looks at the return: a rollout


def main(program: str, env: str, steps: int, seed: int, wanted: float) -> dict[str, object]:
    """Seconds in learn() until the mean of the last 100 returns is as wanted, or all steps are done."""
    torch.set_num_threads(1)
    if program == "sb3":
        from stable_baselines3 import PPO
    else:
        from headrace.sb3 import PPO
    PPO("MlpPolicy", env, n_steps=64, device="cpu").learn(64)  # loads and compiles
    model = PPO("MlpPolicy", env, seed=seed, device="cpu")
    seconds, mean, done = 0.0, -np.inf, 0
    while done < steps and not (mean >= wanted and done >= 10 * PIECE):
        began = time.perf_counter()
        model.learn(PIECE, reset_num_timesteps=done == 0)
        seconds += time.perf_counter() - began
        done = model.num_timesteps
        mean = float(np.mean([info["r"] for info in model.ep_info_buffer])) if model.ep_info_buffer else -np.inf
    row = {"program": program, "env": env, "seed": seed, "steps": done, "seconds": seconds, "mean_return": mean}
    return {"library": program, "config": env, **row}


if __name__ == "__main__":
    given = sys.argv[1:]
    sys.path.append(given[4])
    print(json.dumps(main(given[0], given[1], int(given[2]), int(given[3]), float(given[5]))))
