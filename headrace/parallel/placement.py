"""Choose the devices that collect, learn and evaluate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch

from headrace.core import device
from headrace.core.terminal import tell

# GPU -> number of weights from which learning on it is faster than on the CPU of the same machine, as measured by
# benchmarks/speed/cpu_or_gpu.py; results are in benchmarks/results/cpu_or_gpu.jsonl. It has been run on no GPU yet.
CROSSOVER: dict[str, int] = {}
# For a GPU that is neither in this table nor measured on this machine. An estimate: with fewer weights, the CPU's
# kernels finish a minibatch in less time than launching its hundred or so operations on a GPU takes.
ASSUMED_CROSSOVER = 500_000


@dataclass(frozen=True)
class Placement:
    """The devices on which a run collects, learns and evaluates."""

    collect: torch.device
    learn: torch.device
    evaluate: torch.device

    @classmethod
    def on(
        cls, name: str | torch.device, weights: int = 0, evaluate: str | None = None, collect: str | None = None
    ) -> Placement:
        """Place all on one device; "auto" chooses it by the number of weights. evaluate, collect: another device for
        these. Raises ValueError for a device that this machine does not have."""
        here = choose(weights) if name == "auto" else device.resolve(name)
        others = (here if other is None else device.resolve(other) for other in (collect, evaluate))
        collects, evaluates = others
        return cls(collects, here, evaluates)

    @property
    def apart(self) -> bool:
        """True if one device collects and another one learns. "cuda" is "cuda:0"."""
        one, other = ((place.type, place.index or 0) for place in (self.collect, self.learn))
        return one != other


def choose(weights: int) -> torch.device:
    """The CPU, or the GPU if learning `weights` weights is faster on it. The choice of a GPU is reported on stderr."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    gpu = torch.cuda.get_device_name()
    found = crossover(gpu)
    if weights < (found or ASSUMED_CROSSOVER):
        return torch.device("cpu")
    why = f"faster there from {found:,} on" if found else "not measured on this machine: benchmarks/speed/cpu_or_gpu.py"
    tell(f"learning {weights:,} weights on {gpu} ({why}); device='cpu' keeps it on the CPU")
    return torch.device("cuda")


def crossover(gpu: str) -> int | None:
    """Number of weights from which learning on a GPU of this name is faster than on the CPU; None if not measured."""
    return measured().get(gpu) or CROSSOVER.get(gpu)


def measured() -> dict[str, int]:
    """The results of benchmarks/speed/cpu_or_gpu.py on this machine: GPU -> weights from which it is faster."""
    path = measured_file()
    return json.loads(path.read_text()) if path.is_file() else {}


def measured_file() -> Path:
    """The file with this machine's own measurement."""
    from headrace.kernels.runtime.cache import folder

    return folder() / "cpu_or_gpu.json"


def hidden_weights(hidden: Sequence[int], networks: int = 2) -> int:
    """Number of weights between the hidden layers of an actor and a critic: nearly all weights of a large network."""
    return networks * sum(a * b for a, b in pairwise(hidden))
