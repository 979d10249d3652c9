"""Training scripts that time each of their parts by a clock of their own.

Arguments: PATH SECONDS. A script runs for that long and writes PATH: [[Unix time, {part: seconds so far}], ...]. Its
names are meaningless on purpose: a diagnosis has to recognise what the functions are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

CLOCK = """
import atexit, json, sys, time

PATH, SECONDS = sys.argv[1], float(sys.argv[2])
BEGAN = time.perf_counter()
SPENT, HISTORY, LAST = {}, [], [BEGAN, 0.0]


def mark(part):
    now = time.perf_counter()
    SPENT[part] = SPENT.get(part, 0.0) + now - LAST[0]
    if now - LAST[1] > 0.05:
        LAST[1] = now
        HISTORY.append([time.time(), dict(SPENT)])
    LAST[0] = now


def over():
    return time.perf_counter() - BEGAN > SECONDS


def leave():
    with open(PATH, "w") as file:
        json.dump(HISTORY, file)


def burn(seconds):
    end = time.perf_counter() + seconds
    total = 0
    while time.perf_counter() < end:
        total += 1
    return total

"""

ENV_CLASS = """
import gymnasium, numpy


class Thing(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, cost=COST):
        self.cost, self.count = cost, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return numpy.zeros(4, numpy.float32), {}

    def step(self, action):
        if self.cost:
            burn(self.cost)
        self.count += 1
        return numpy.full(4, 0.01 * self.count, numpy.float32), 1.0, self.count >= 20, False, {}


class Around(gymnasium.Wrapper):
    def step(self, action):
        time.sleep(0.001)
        return self.env.step(action)

"""

PLAIN = """
import torch

torch.set_num_threads(1)
one = torch.nn.Sequential(torch.nn.Linear(4, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(),
                          torch.nn.Linear(WIDTH, 2))
two = torch.optim.Adam(one.parameters(), 1e-3)
thing = MAKE
other = MAKE_OTHER
x, _ = thing.reset()
rows, n = [], 0
file = open(PATH + ".txt", "w")


def f():
    y, _ = other.reset()
    z, total = False, 0.0
    while not z:
        with torch.no_grad():
            a = one(torch.as_tensor(y)).argmax().item()
        y, r, z, _, _ = other.step(a)
        total += r
    return total


mark("start")
while not over():
    with torch.no_grad():
        logits = one(torch.as_tensor(x)[None])
        a = torch.distributions.Categorical(logits=logits).sample().item()
    mark("inference")
    y, r, z, _, _ = thing.step(a)
    if z:
        y, _ = thing.reset()
    mark("environment")
    rows.append((x, a, r))
    x, n = y, n + 1
    if NOTE:
        file.write(f"{n} {r}\\n" * 40)
        file.flush()
        mark("logging")
    if KEEP and n % 32 == 0:
        torch.save(one.state_dict(), PATH + ".pt")
        mark("saving")
    if JUDGE and n % 100 == 0:
        for _ in range(JUDGE):
            f()
        mark("evaluation")
    if n % 32 == 0:
        xs = torch.as_tensor(numpy.stack([row[0] for row in rows]))
        acts = torch.tensor([row[1] for row in rows])
        rs = torch.tensor([row[2] for row in rows])
        rows.clear()
        mark("data")
        for _ in range(EPOCHS):
            loss = -(torch.distributions.Categorical(logits=one(xs)).log_prob(acts) * rs).mean()
            two.zero_grad()
            loss.backward()
            two.step()
        mark("learn")
leave()
"""

HELPERS = """
import torch
from torch import nn

torch.set_num_threads(1)


class A(nn.Module):
    def __init__(self):
        super().__init__()
        self.p, self.q = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, x):
        return self.q(torch.relu(self.p(x)))


class B:
    def __init__(self):
        self.k, self.old, self.thing = A(), A(), MAKE
        self.opt = torch.optim.Adam(self.k.parameters())
        self.rows, self.x = [], self.thing.reset()[0]

    def go(self, n):
        for _ in range(n):
            a = self.pick()
            mark("inference")
            y, r, z, _, _ = self.thing.step(a)
            if z:
                y, _ = self.thing.reset()
            mark("environment")
            self.rows.append((self.x, a, r, y))
            self.x = y
        mark("data")

    def pick(self):
        with torch.no_grad():
            return int(self.k(torch.from_numpy(self.x)).argmax())

    def fit(self):
        batch = self.rows[-64:]
        x, y = (torch.as_tensor(numpy.stack([row[i] for row in batch])) for i in (0, 3))
        a, r = torch.tensor([row[1] for row in batch]), torch.tensor([row[2] for row in batch])
        mark("data")
        with torch.no_grad():
            target = r + 0.99 * self.old(y).max(1).values
        loss = nn.functional.mse_loss(self.k(x).gather(1, a[:, None])[:, 0], target)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        mark("learn")


def main():
    b = B()
    mark("start")
    while not over():
        b.go(8)
        for _ in range(EPOCHS):
            b.fit()
        del b.rows[:-512]


if __name__ == "__main__":
    main()
    leave()
"""

WORKERS = """
import multiprocessing, torch

torch.set_num_threads(1)


def serve(pipe, cost):
    thing = Thing(cost)
    thing.reset()
    while True:
        a = pipe.recv()
        if a is None:
            return
        y, r, z, _, _ = thing.step(a)
        if z:
            y, _ = thing.reset()
        pipe.send((y, r, z))


def main():
    context = multiprocessing.get_context(START)
    pipes, ends = zip(*(context.Pipe() for _ in range(3)))
    for end, cost in zip(ends, (0.0002, 0.0002, 0.004)):
        context.Process(target=serve, args=(end, cost), daemon=True).start()
    net = torch.nn.Sequential(torch.nn.Linear(4, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 2))
    opt = torch.optim.Adam(net.parameters())
    x, n, rows = numpy.zeros((3, 4), numpy.float32), 0, []
    mark("start")
    while not over():
        with torch.no_grad():
            a = net(torch.from_numpy(x)).argmax(1).tolist()
        mark("inference")
        for pipe, each in zip(pipes, a):
            pipe.send(each)
        mark("send")
        got = [pipe.recv() for pipe in pipes]
        mark("wait")
        x, n = numpy.stack([each[0] for each in got]), n + 1
        rows.append(x)
        mark("data")
        if n % 16 == 0:
            for _ in range(EPOCHS):
                loss = net(torch.from_numpy(numpy.concatenate(rows))).square().mean()
                opt.zero_grad()
                loss.backward()
                opt.step()
            rows.clear()
            mark("learn")
    for pipe in pipes:
        pipe.send(None)
    leave()


if __name__ == "__main__":
    main()
"""

SB3 = """
import torch
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

torch.set_num_threads(1)


def clocked(holder, name, part):
    inner = getattr(holder, name)

    def call(*words, **named):
        mark("rest")
        result = inner(*words, **named)
        mark(part)
        return result

    setattr(holder, name, call)


class Until(BaseCallback):
    def _on_step(self):
        return not over()


def main():
    worlds = MAKE
    model = MODEL
    clocked(model.env, "step", ENV_PART)
    clocked(model, "train", "train")
    calls = [Until()]
    if JUDGE:
        calls.append(EvalCallback(MAKE_OTHER, eval_freq=100, n_eval_episodes=JUDGE, verbose=0))
        clocked(calls[-1], "_on_step", "evaluation")
    mark("start")
    model.learn(10**9, callback=calls)
    leave()


if __name__ == "__main__":
    main()
"""


@dataclass(frozen=True)
class Script:
    """A script to be written, and whether it needs Stable-Baselines3."""

    name: str
    text: str
    sb3: bool = False

    def write(self, folder: Path) -> Path:
        """Write it, under a name that says nothing."""
        path = folder / "run.py"
        path.write_text(self.text)
        return path


def _script(name: str, body: str, sb3: bool = False, **settings: object) -> Script:
    given = {"COST": 0, "WIDTH": 32, "NOTE": False, "KEEP": False, "JUDGE": 0, "EPOCHS": 1, "START": "'fork'"}
    given |= {"MAKE_OTHER": "Monitor(Thing())" if sb3 else "Thing()", "MAKE": "Thing()", "ENV_PART": "'environment'"}
    text = CLOCK + ENV_CLASS + body
    for word, value in sorted((given | settings).items(), key=lambda item: -len(item[0])):
        text = text.replace(word, str(value)) if word in ("MAKE", "MAKE_OTHER", "MODEL") else _named(text, word, value)
    return Script(name, text, sb3)


def _named(text: str, word: str, value: object) -> str:
    return re.sub(rf"\b{word}\b", str(value), text)


EIGHT = "DummyVecEnv([lambda: Monitor(Thing())] * 8)"
SCRIPTS = [
    _script("free world, 10^3 parameters", PLAIN),
    _script("50 us, 10^3", PLAIN, COST=50e-6),
    _script("5 ms, 10^3", PLAIN, COST=5e-3, EPOCHS=4),
    _script("free, 10^5", PLAIN, WIDTH=300),
    _script("50 us, 10^5", PLAIN, COST=50e-6, WIDTH=300, EPOCHS=4),
    _script("5 ms, 10^7", PLAIN, COST=5e-3, WIDTH=3000),
    _script("free, 10^7", PLAIN, WIDTH=3000),
    _script("logger flushes at each step", PLAIN, NOTE=True),
    _script("sleep in a wrapper", PLAIN, MAKE="Around(Thing())"),
    _script("evaluation every 100 steps", PLAIN, JUDGE=5, MAKE_OTHER="Thing()"),
    _script("saving", PLAIN, KEEP=True, WIDTH=300),
    _script("helpers, free", HELPERS, EPOCHS=1),
    _script("helpers, 500 us", HELPERS, EPOCHS=2, COST=5e-4, WIDTH=256),
    _script("straggler among forked workers", WORKERS, EPOCHS=4),
    _script("straggler among spawned workers", WORKERS, EPOCHS=8, WIDTH=256, START="'spawn'"),
    _script("SB3 PPO", SB3, sb3=True, MAKE=EIGHT, MODEL="PPO('MlpPolicy', worlds, 64, device='cpu')"),
    _script(
        "SB3 PPO, 1 ms", SB3, sb3=True, COST=1e-3, MAKE=EIGHT,
        MODEL="PPO('MlpPolicy', worlds, n_steps=64, device='cpu')",
    ),
    _script(
        "SB3 DQN, evaluated", SB3, sb3=True, JUDGE=5, MAKE="Monitor(Thing())",
        MODEL="DQN('MlpPolicy', worlds, learning_starts=100, train_freq=4, device='cpu')",
    ),
    _script(
        "SB3 SAC", SB3, sb3=True, COST=1e-3, MAKE="gymnasium.make('Pendulum-v1')",
        MODEL="SAC('MlpPolicy', worlds, learning_starts=100, device='cpu')",
    ),
    _script(
        "SB3 A2C, workers", SB3, sb3=True, COST=5e-4, ENV_PART="'environment and wait'",
        MAKE="SubprocVecEnv([lambda: Monitor(Thing())] * 2)",
        MODEL="A2C('MlpPolicy', worlds, n_steps=16, device='cpu')",
    ),
]  # fmt: skip
