"""Try every entry of a folder of YAML files of rl_zoo3, and print what is accepted, and what is refused and why.

    python -m benchmarks.pages.zoo_entries FOLDER [--only ppo.yml] [--verbose]

FOLDER: that of the hyperparams of rl-baselines3-zoo, one file for each algorithm. An entry is accepted if it was
translated, its environment and networks were made, and one update was learned, with shorter rollouts, smaller buffers
and fewer epochs, in plain PyTorch. Where an environment is not installed, another with its spaces takes its place.
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Space

import headrace as hr
from headrace.core.fused import plain_only
from headrace.sb3.zoo.entries import MODELS, checked, read, translated
from headrace.sb3.zoo.entry_wrappers import wrapping_of

BOXES = {  # entries of observations and actions
    **{"HalfCheetahBulletEnv-v0": (26, 6), "Walker2DBulletEnv-v0": (22, 6), "AntBulletEnv-v0": (28, 8)},
    **{"HopperBulletEnv-v0": (15, 3), "ReacherBulletEnv-v0": (9, 2), "HumanoidBulletEnv-v0": (44, 17)},
    **{"InvertedDoublePendulumBulletEnv-v0": (9, 1), "InvertedPendulumSwingupBulletEnv-v0": (5, 1)},
    **{"MinitaurBulletEnv-v0": (28, 8), "MinitaurBulletDuckEnv-v0": (28, 8)},
    **{"HumanoidStandup-v2": (376, 17), "InvertedDoublePendulum-v2": (11, 1), "InvertedPendulum-v2": (4, 1)},
    **{"Reacher-v2": (11, 2), "PendulumNoVel-v1": (2, 1), "MountainCarContinuousNoVel-v0": (1, 1)},
    **{"LunarLanderContinuousNoVel-v2": (5, 2), "default": (8, 2)},
}
CHOICES = {"CartPoleNoVel-v1": (2, 2), "MountainCarNoVel-v0": (1, 3), "LunarLanderNoVel-v2": (5, 4)}
GOALS = {  # entries of observations, goals and actions
    **{"FetchReach-v1": (10, 3, 4), "FetchPush-v1": (25, 3, 4), "FetchSlide-v1": (25, 3, 4)},
    **{"FetchPickAndPlace-v1": (25, 3, 4), "parking-v0": (6, 6, 2), "PandaReach-v1": (6, 3, 3)},
    **{"PandaPush-v1": (18, 3, 3), "PandaSlide-v1": (18, 3, 3), "PandaPickAndPlace-v1": (19, 3, 4)},
    "PandaStack-v1": (31, 6, 4),
}
DISCRETE = ("dqn", "qrdqn")


class StandIn(gymnasium.Env):
    """Random observations, and rewards of 0, in episodes of 20 steps."""

    def __init__(self, observation_space: Space, action_space: Space) -> None:
        self.observation_space, self.action_space, self.steps = observation_space, action_space, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.steps += 1
        return self.observation_space.sample(), 0.0, False, self.steps == 20, {}

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
        """The reward for goals, of a batch too."""
        return -np.linalg.norm(achieved - desired, axis=-1).astype(np.float32)


def stand_in(env: str, algorithm: str) -> tuple[Space, Space] | None:
    """The spaces of an environment that is not installed; None where they are not known."""
    if env == "atari":
        return Box(0, 255, (4, 84, 84), np.uint8), Discrete(6)
    if env.startswith("MiniGrid-"):  # in FlatObsWrapper
        return Box(0, 255, (2835,), np.uint8), Discrete(7)
    if env in GOALS:
        seen, goal, forces = GOALS[env]
        goals = {name: Box(-1, 1, (goal,)) for name in ("achieved_goal", "desired_goal")}
        return Dict({"observation": Box(-1, 1, (seen,)), **goals}), Box(-1, 1, (forces,))
    if env in CHOICES or algorithm in DISCRETE:
        seen, choices = CHOICES.get(env, (8, 4))
        return Box(-1, 1, (seen,)), Discrete(choices)
    if env in BOXES:
        seen, forces = BOXES[env]
        return Box(-1, 1, (seen,)), Box(-1, 1, (forces,))
    return None


def source_of(env: str, algorithm: str) -> tuple[Any, bool]:
    """Find what makes an environment, and whether it is the environment itself. Raises LookupError if neither the
    environment nor its spaces are found."""
    if env not in ("atari", "default") and env in gymnasium.registry:
        try:
            gymnasium.make(env).close()
            return env, True
        except (ImportError, gymnasium.error.Error):
            pass
    spaces = stand_in(env, algorithm)
    if spaces is None:
        raise LookupError(f"{env} is not installed, and its spaces are not known here: install its package")
    return (lambda: StandIn(*spaces)), False


def smaller(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with which one update is short. Networks, losses and exploration are those of the entry."""
    most = {
        "num_envs": 2,
        "num_steps": 16,
        "epochs": 1,
        "minibatch_size": 32,
        "critic_epochs": 1,
        "critic_hidden": None,
    }
    most |= {"buffer_size": 400, "learning_starts": 40, "batch_size": 16, "gradient_steps": 2}
    found = {name: min(x, most[name]) if most.get(name) and x else x for name, x in settings.items()}
    if found.get("sequence_length"):
        found["sequence_length"] = 16 if "epochs" in found else 8
    return found | {"total_steps": 10_000, "progress": "none", "seed": 0}


def tried(file: Path, env: str, entry: dict[str, Any]) -> str:
    """Learn one update of an entry. Returns how it went: "accepted", "stand-in". Raises what refuses it."""
    algorithm = {"ppo_lstm": "ppo", "her": entry.get("model_class", "sac")}.get(file.stem, file.stem)
    kind, own = checked(entry, algorithm, env)
    id_ = "ALE/Pong-v5" if env == "atari" else env
    of_minigrid = env.startswith("MiniGrid-") and "minigrid" not in sys.modules
    wrapping = wrapping_of({k: x for k, x in own.items() if not (of_minigrid and k == "env_wrapper")}, id_, env)
    source, itself = source_of(env, algorithm)
    with closing(hr.make(source, 1, **wrapping.of_make())) as one:
        spaces = one.observation_space, one.action_space
    settings = translated(kind, own, wrapping, spaces, env)
    with plain_only(), closing(hr.Trainer(algorithm, source, **smaller(settings))) as trainer:
        while not learned(trainer.iterate().metrics):
            pass
    return "accepted" if itself else "accepted on a stand-in"


def learned(metrics: Any) -> bool:
    """True if an iteration has learned."""
    return any("loss" in name for name in metrics)


def reason(env: str, error: BaseException) -> str:
    """Reason why an entry is refused, the same for similar entries."""
    text = str(error).splitlines()[0].replace(f"{env}: ", "")
    return re.sub(r"(?<![\w.])\d+(\.\d+)?", "N", text)[:160]


def main() -> None:
    """Try the entries, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", help="one file of the folder")
    parser.add_argument("--verbose", action="store_true", help="a line for each entry")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    counted, reasons, total = {}, Counter[str](), Counter[str]()
    for file in sorted(args.folder.glob(args.only or "*.yml")):
        counted[file.name] = Counter[str]()
        for env, entry in read(file).items():
            try:
                found = tried(file, env, entry)
            except (ValueError, TypeError, LookupError, ImportError, gymnasium.error.Error) as error:
                found, why = "refused", reason(env, error)
                if file.stem not in (*MODELS, "ppo_lstm", "her"):
                    why = f"{file.stem} is no algorithm of Headrace: train ppo or sac"
                reasons[why] += 1
                if args.verbose:
                    print(f"{file.name} {env}: {error}", flush=True)
            counted[file.name][found] += 1
            total[found] += 1
    columns = ("accepted", "accepted on a stand-in", "refused")
    print(f"| file | {' | '.join(columns)} |\n|---|---|---|---|")
    for name, numbers in {**counted, "all": total}.items():
        print(f"| {name} | {' | '.join(str(numbers[column]) for column in columns)} |")
    print("\n| refused | because |\n|---|---|")
    for why, number in reasons.most_common():
        print(f"| {number} | {why} |")


if __name__ == "__main__":
    main()
