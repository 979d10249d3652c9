"""First day of a user of Stable-Baselines3 with Headrace: 40 steps, each with command and output.

    python -m benchmarks.pages.first_day                      # prints them as a document
    python -m benchmarks.pages.first_day --output day.md

Each step runs in a process of its own, in one folder that begins empty. Where a step fails, or its output lacks what is
expected, the exit code is 1. Trainings are short: they show that a thing works, not how well it learns.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import tyro

from benchmarks.common import environment

SMALL = "--num-envs 8 --num-steps 32 --total-steps 4000 --target-return none --final-episodes 5 --progress plain"
RUN = "runs/ppo/CartPole-v1_1"
LONGEST = 240  # s of a step


@dataclass(frozen=True)
class Step:
    """A thing that a user does."""

    what: str
    command: str  # of the shell; of Python, if it has several lines or is no `headrace`
    expected: str  # a regular expression in its output
    fails: bool = False  # whether it is to be refused


def quickstart(name: str, more: str = "") -> str:
    """Stable-Baselines3's quickstart with its import changed."""
    return f"""from headrace.sb3 import {name}
model = {name}("MlpPolicy", "CartPole-v1", verbose=0, seed=0{more})
model.learn(4_000)
model.save("{name.lower()}_cartpole")
print(type(model).__name__, model.num_timesteps)"""


FILES = {
    "my_env.py": '''import gymnasium
import numpy as np


class Walk(gymnasium.Env):
    """Go right: `length` steps of an episode."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length=20):
        self.length, self.place, self.t = length, 0, 0

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.t = 0, 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t, self.place = self.t + 1, self.place + (1 if action else -1)
        seen = np.array([self.place, self.t], np.float32) / self.length
        return seen, float(action), False, self.t >= self.length, {}


class Half(gymnasium.RewardWrapper):
    def reward(self, reward):
        return reward / 2
''',
    "my_policy.py": """import torch
from torch import nn

import headrace as hr


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.inner = nn.Linear(size, size)

    def forward(self, x):
        return x + torch.relu(self.inner(x))


class Residual(hr.ActorCritic):
    def __init__(self, observation_space, action_space, hidden=(64,), seed=0):
        super().__init__(observation_space, action_space, hidden=hidden, seed=seed)
        self.actor = nn.Sequential(self.actor, Block(hidden[-1]))
""",
    "own_loop.py": """import headrace as hr

with hr.Training("ppo", "CartPole-v1", num_envs=8, num_steps=32, total_steps=20_000, progress="none") as t:
    for row in t:
        if row.mean_return is not None and row.mean_return > 20 * t.state.get("level", 1):
            t.state["level"] = t.state.get("level", 1) + 1
            t.env.set_params(gravity=9.8 + t.state["level"])
        t.log("curriculum/level", t.state.get("level", 1))
        if row.episodes >= 60:
            t.stop("60 episodes")
print(t.run.reason, t.env.params)
""",
}
STEPS = (
    Step("Which version is this?", "headrace --version", r"headrace \S+"),
    Step("What can it do?", "headrace --help", r"train +train an agent"),
    Step("Which environments are built in?", "headrace envs", r"CartPole-v1"),
    Step("The quickstart of SB3, one import changed", quickstart("PPO"), r"PPO \d{4}"),
    Step("DQN the same way", quickstart("DQN", ", learning_starts=100"), r"DQN 4"),
    Step(
        "Load and act, as in SB3",
        """import gymnasium
from headrace.sb3 import PPO
model, env = PPO.load("ppo_cartpole"), gymnasium.make("CartPole-v1")
observation, _ = env.reset(seed=0)
print("action", model.predict(observation, deterministic=True)[0])""",
        r"action [01]",
    ),
    Step(
        "A callback of SB3: a function that stops the training",
        """from headrace.sb3 import PPO
model = PPO("MlpPolicy", "CartPole-v1", n_steps=256)
model.learn(5_000, callback=lambda local, everything: local["self"].num_timesteps < 600)
print("stopped at", model.num_timesteps)""",
        r"stopped at \d{3,4}\b",
    ),
    Step(
        "Gymnasium's own vector interface",
        """import gymnasium
envs = gymnasium.make_vec("headrace.gym:headrace/CartPole-v1", num_envs=64)
observation, _ = envs.reset(seed=0)
print(observation.shape, envs.step(envs.action_space.sample())[1].sum())""",
        r"\(64, 4\) 64\.0",
    ),
    Step("Train from the command line", f"headrace train ppo CartPole-v1 {SMALL}", rf"headrace eval {RUN}"),
    Step("Evaluate it", f"headrace eval {RUN} --episodes 10", r"return +\d"),
    Step("Evaluate it for a script", f"headrace eval {RUN} --episodes 5 --json", r'"mean": \d'),
    Step("A video", f"headrace play {RUN} --output play.gif --max-steps 60", r"wrote play.gif"),
    Step("A learning curve", f"headrace plot {RUN} --output curve.png", r"wrote curve.png"),
    Step("Go on with it", f"headrace train --resume {RUN} --total-steps 6000 --final-episodes 0", r"trained in"),
    Step("What is in the folder?", f"ls {RUN}", r"monitor.csv"),
    Step("A misspelt environment", "headrace train ppo CartPol-v1", r"did you mean 'CartPole-v1'", fails=True),
    Step("A misspelt setting", "headrace train ppo CartPole-v1 --learning-rat 0.1", r"learning-rate", fails=True),
    Step("Three seeds", f"headrace train ppo CartPole-v1 {SMALL} --seeds 1-3", r"mean return: mean"),
    Step("Another learning rate", f"headrace train ppo CartPole-v1 {SMALL} --learning-rate 0.0003", r"evaluated last/"),
    Step("Which runs are there?", "headrace runs", r"learning_rate"),
    Step("Compare them", "headrace plot runs/ppo/CartPole-v1_* --by learning_rate --output all.png", r"wrote all.png"),
    Step("Heavier gravity", f"headrace train ppo CartPole-v1 {SMALL} --params gravity=20", r"evaluated last/"),
    Step("... which is in its settings", "grep gravity runs/ppo/CartPole-v1_6/config.toml", r"gravity = 20"),
    Step(
        "... and in its video", "headrace play runs/ppo/CartPole-v1_6 --output heavy.gif --max-steps 50", r"heavy.gif"
    ),
    Step("Fine-tune", f"headrace train ppo CartPole-v1 {SMALL} --init-from {RUN} --learning-rate 1e-4", r"evaluated"),
    Step("An environment of your own", f"headrace train ppo my_env.py:Walk {SMALL}", r"runs/ppo/Walk_1"),
    Step("Is it right?", "headrace check my_env.py:Walk --steps 50 --measure 0", r"(?i)walk"),
    Step(
        "With arguments and a wrapper",
        f"headrace train ppo my_env.py:Walk {SMALL} --env-kwargs length=10 --wrapper my_env.py:Half",
        r"mean length 10",
    ),
    Step("... evaluated with the same", "headrace eval runs/ppo/Walk_2 --episodes 3", r"length +10.00"),
    Step("In two processes", f"headrace train ppo my_env.py:Walk {SMALL} --workers 2", r"in 2 processes"),
    Step(
        "A network of your own", f"headrace train ppo CartPole-v1 {SMALL} --policy my_policy.py:Residual", r"evaluated"
    ),
    Step(
        "... resumed",
        "headrace train --resume runs/ppo/CartPole-v1_8 --total-steps 5000 --final-episodes 2",
        r"trained",
    ),
    Step("A loop of your own, with a curriculum", "python own_loop.py", r"60 episodes \{'gravity'"),
    Step(
        "SAC on Pendulum",
        "headrace train sac Pendulum-v1 --total-steps 3000 --target-return none --final-episodes 2 --progress plain",
        r"runs/sac/Pendulum-v1_1",
    ),
    Step(
        "Search settings",
        f"headrace sweep ppo CartPole-v1 {SMALL} --search learning_rate=1e-5..1e-2 clip=0.1,0.3 --trials 6",
        r"best: trial \d",
    ),
    Step(
        "... and go on",
        f"headrace sweep ppo CartPole-v1 {SMALL} --search learning_rate=1e-5..1e-2 clip=0.1,0.3 --trials 7",
        r"trial 6",
    ),
    Step("Export without Headrace", f"headrace export {RUN} --to numpy --output policy.py", r"wrote policy.py"),
    Step(
        "... and act with NumPy alone",
        "import sys, policy\nprint('torch' in sys.modules, policy.__doc__[:40])",
        r"^False",
    ),
    Step(
        "Load a policy in Python",
        f'import headrace as hr, numpy as np\nprint(hr.load("{RUN}").predict(np.zeros(4, np.float32)))',
        r"[01]",
    ),
    Step("Where does the time go?", f"headrace train ppo CartPole-v1 {SMALL} --diagnose", r"(?i)learn"),
)


@dataclass(frozen=True)
class Arguments:
    """Steps to take, and the place for their output."""

    output: Path | None = None  # a file for the document; without it, standard output
    first: int = 1  # the step to begin with
    last: int = len(STEPS)  # the step to end with
    folder: Path | None = None  # where to take them, such as that of earlier steps; without it, one that is removed


def main() -> None:
    """Take the steps, and write the document."""
    options = tyro.cli(Arguments, description=__doc__)
    parts, failed = [f"# A first day, in {len(STEPS)} steps\n"], []
    with tempfile.TemporaryDirectory() as name:
        folder = (options.folder or Path(name)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in FILES.items():
            (folder / path).write_text(text)
        for number, step in enumerate(STEPS, 1):
            if not options.first <= number <= options.last:
                continue
            began = time.perf_counter()
            code, output = take(step, folder)
            right = (code != 0) == step.fails and re.search(step.expected, output, re.MULTILINE)
            if not right:
                failed.append(number)
            seconds = time.perf_counter() - began
            parts.append(f"## {number}. {step.what}\n\n{_block(step.command)}\n\n{_block(output)}\n\n{seconds:.1f} s\n")
            print(
                f"{number:>2} {'ok  ' if right else 'FAIL'} {seconds:5.1f} s  {step.what}", file=sys.stderr, flush=True
            )
    document = "\n".join(parts)
    if options.output is None:
        print(document)
    else:
        options.output.write_text(document)
    if failed:
        sys.exit(f"failed: steps {', '.join(map(str, failed))}")


def take(step: Step, folder: Path) -> tuple[int, str]:
    """The exit code and the output of a step."""
    words = shlex.split(step.command, posix=True) if "\n" not in step.command else []
    if words[:1] == ["headrace"]:
        words = [sys.executable, "-m", "headrace", *_expanded(words[1:], folder)]
    elif words[:1] == ["python"]:
        words = [sys.executable, *words[1:]]
    elif not words or words[0] in ("import", "from"):
        words = [sys.executable, "-c", step.command]
    settings = environment(OMP_NUM_THREADS="1", COLUMNS="120")
    done = subprocess.run(
        words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LONGEST, env=settings
    )
    return done.returncode, done.stdout.replace(str(folder), "~")


def _expanded(words: list[str], folder: Path) -> list[str]:
    """Words with * as the shell expands them."""
    return [
        found
        for word in words
        for found in (sorted(str(path.relative_to(folder)) for path in folder.glob(word)) if "*" in word else [word])
    ]


def _block(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines())


if __name__ == "__main__":
    main()
