"""CPU or GPU: samples a second of PPO iterations by the size of the network, and the size from which the GPU wins.

Environments are left out: observations come from memory, so that acting and learning are what is measured. Three ways:
all on the CPU (kernels where they serve); toggling, which acts on the CPU, learns on the GPU, and copies rollout and
weights across; all on the GPU, as one CUDA graph where it can be captured. Without a GPU the first is printed alone.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.common import Neighbours, Row, cores, finish, parser, table, throughput
from headrace.algorithms.ppo import PPO, PPOConfig
from headrace.core.device import torch_threads
from headrace.data.rollout import Rollout
from headrace.data.spaces import Box, Discrete
from headrace.envs import Env
from headrace.parallel.collector import InlineCollector
from headrace.parallel.cuda.cuda_graphs import GraphedIteration
from headrace.parallel.placement import measured_file

VECTOR, IMAGE = Box(-1, 1, (24,)), Box(0, 255, (4, 42, 42), np.uint8)
ACTIONS = Discrete(6)
BANK = 8  # observations of each environment, shown in turn


class Case(NamedTuple):
    """A network, and how much it learns from at once."""

    network: str
    hidden: tuple[int, ...]
    num_envs: int
    minibatch_size: int
    images: str = "auto"
    quick: bool = False


CASES = [
    Case("MLP", (12, 12), 256, 2048, quick=True),  # 10^3 weights
    Case("MLP", (60, 60), 256, 2048, quick=True),
    Case("MLP", (210, 210), 256, 2048),
    Case("MLP", (700, 700), 64, 1024),
    Case("MLP", (2230, 2230), 16, 256),  # 10^7
    Case("CNN", (), 4, 32, "small"),
    Case("CNN", (), 4, 32, "impala"),
    Case("CNN", (), 4, 32, "nature"),
    Case("CNN", (1900, 1900), 4, 32, "nature"),  # 10^7
]
STEPS, EPOCHS = 32, 4
COLUMNS = ("network", "weights", "placement", "threads", "minibatch_size", "sps", "sps_min", "sps_max")


class Shown(Env):
    """N environments whose observations lie ready: stepping them costs one copy."""

    name, backend = "Shown", "torch"
    action_space = ACTIONS

    def __init__(self, space: Box, num_envs: int, device: torch.device) -> None:
        self.observation_space, self.num_envs, self.device = space, num_envs, device
        generator = torch.Generator().manual_seed(0)
        shape = (BANK, num_envs, *space.shape)
        if space.dtype == np.uint8:
            self.bank = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8).to(device)
        else:
            self.bank = torch.randn(shape, generator=generator).to(device)

    def reset(self, rollout: Rollout, seed: int) -> None:
        rollout.valid.fill_(True)
        rollout.observation[0].copy_(self.bank[0])

    def step(self, rollout: Rollout, t: int) -> None:
        rollout.reward[t].copy_(rollout.action[t])
        rollout.observation[t + 1].copy_(self.bank[(t + 1) % BANK])

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: there is no state."""

    def close(self) -> None:
        """Do nothing: nothing is held."""


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--seconds", type=float, default=1.0, help="of each of the three windows")
    flags.add_argument("--keep", action="store_true", help='let device="auto" go by the result on this machine')
    options = flags.parse_args()
    if options.quick:
        options.seconds = 0.05
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    neighbours, rows = Neighbours(), list[Row]()
    for case in CASES:
        if case.quick or not options.quick:
            rows += measure(case, options.seconds, gpu is not None)
    print(table(rows, COLUMNS))
    found = crossover(rows)
    if gpu is None:
        print("there is no GPU here: toggling and all on the GPU are not measured, nor is the crossover")
    else:
        print(f"learning on {gpu} is faster from {found:,} weights on" if found else f"{gpu} is never faster here")
        if options.keep and found:
            keep(gpu, found)
    finish("cpu_or_gpu", rows, options, neighbours, gpu=gpu, crossover=found)


def measure(case: Case, seconds: float, gpu: bool) -> list[Row]:
    """Samples a second of one network in every placement there is: the best number of threads, on the CPU."""
    rows = []
    for threads in sorted({1, cores()}):
        with torch_threads(threads):
            rows.append(_row(case, "cpu", threads, *_on(case, torch.device("cpu"), seconds)))
    rows = [max(rows, key=lambda row: row["sps"])]
    if gpu:
        cuda = torch.device("cuda")
        with torch_threads(rows[0]["threads"]):
            rows.append(_row(case, "toggling", rows[0]["threads"], *_toggling(case, cuda, seconds)))
        rows.append(_row(case, "gpu", 1, *_on(case, cuda, seconds)))
    return rows


def _row(case: Case, placement: str, threads: int, learner: PPO, speed: Row) -> Row:
    weights = sum(parameter.numel() for parameter in learner.policy.parameters())
    return {**case._asdict(), "weights": weights, "placement": placement, "threads": threads, **speed}


def _made(case: Case, device: torch.device) -> tuple[PPO, InlineCollector]:
    space = VECTOR if case.network == "MLP" else IMAGE
    config = PPOConfig(
        num_steps=STEPS,
        epochs=EPOCHS,
        minibatch_size=case.minibatch_size,
        hidden=case.hidden,
        images=case.images,  # type: ignore[arg-type]
    )
    learner = PPO.build(config, space, ACTIONS, 0, device)
    env = Shown(space, case.num_envs, device)
    return learner, InlineCollector(env, learner.policy, STEPS, learner.columns(), 0)


def _on(case: Case, device: torch.device, seconds: float) -> tuple[PPO, Row]:
    """Acting and learning on one device."""
    learner, collector = _made(case, device)
    graphed = GraphedIteration(collector, learner) if device.type == "cuda" else None

    def iterate() -> None:
        metrics = graphed.iterate(0.0) if graphed else None
        if metrics is None:
            metrics = learner.update(collector.collect(), 0.0)
        float(metrics["loss"])  # waits for the device, as a training does once an iteration

    return learner, throughput(iterate, STEPS * case.num_envs, seconds)


def _toggling(case: Case, device: torch.device, seconds: float) -> tuple[PPO, Row]:
    """Acting on the CPU, learning on the GPU; the rollout goes there, and the weights come back."""
    actor, collector = _made(case, torch.device("cpu"))
    learner, _ = _made(case, device)
    there = Rollout(STEPS, case.num_envs, collector.rollout.columns, device)

    def iterate() -> None:
        rollout = collector.collect()
        for name in rollout.columns:
            getattr(there, name).copy_(getattr(rollout, name))
        learner.update(there, 0.0)
        for mine, its in zip(actor.policy.state_dict().values(), learner.policy.state_dict().values(), strict=True):
            mine.copy_(its)

    return learner, throughput(iterate, STEPS * case.num_envs, seconds)


def crossover(rows: list[Row]) -> int | None:
    """The least number of weights of an MLP from which on some way with the GPU is faster; None for never."""
    best: dict[int, dict[str, float]] = {}
    for row in rows:
        if row["network"] == "MLP":
            place = "cpu" if row["placement"] == "cpu" else "gpu"
            speeds = best.setdefault(row["weights"], {})
            speeds[place] = max(row["sps"], speeds.get(place, 0.0))
    found = None
    for weights in sorted(best, reverse=True):
        if best[weights].get("gpu", 0.0) <= best[weights]["cpu"]:
            break
        found = weights
    return found


def keep(gpu: str, weights: int) -> None:
    """Let headrace.parallel.placement find the crossover of this machine."""
    path = measured_file()
    known = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(known | {gpu: weights}))
    print(f'device="auto" goes by this from now on ({path})')


if __name__ == "__main__":
    main()
