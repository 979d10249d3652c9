"""Which device collects, learns and evaluates."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch

from headrace.core import device

# GPU -> number of weights from which learning on it is faster than on the CPU beside it, as benchmarks/cpu_or_gpu.py
# finds; results are in benchmarks/results/cpu_or_gpu.jsonl. No GPU has been measured yet.
CROSSOVER: dict[str, int] = {}
# Where neither this table nor the machine's own measurement knows the GPU. Not measured: an estimate. A minibatch step
# of fewer weights takes the CPU's kernels less than the launches of its some hundred operations would take.
ASSUMED_CROSSOVER = 500_000


@dataclass(frozen=True)
class Placement:
    """The devices of a run. Nobody else decides where tensors live."""

    collect: torch.device
    learn: torch.device
    evaluate: torch.device

    @classmethod
    def on(cls, name: str | torch.device, weights: int = 0) -> Placement:
        """Everything on one device; "auto" chooses by how many weights learn. Raises ValueError for a device this
        machine does not have."""
        here = choose(weights) if name == "auto" else device.resolve(name)
        return cls(here, here, here)


def choose(weights: int) -> torch.device:
    """The CPU, or the GPU where a network of so many weights learns faster on it; a word on stderr for the latter."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    gpu = torch.cuda.get_device_name()
    found = measured().get(gpu) or CROSSOVER.get(gpu)
    if weights < (found or ASSUMED_CROSSOVER):
        return torch.device("cpu")
    why = f"faster there from {found:,} on" if found else "not measured on this machine: benchmarks/cpu_or_gpu.py"
    print(f"learning {weights:,} weights on {gpu} ({why})", file=sys.stderr, flush=True)
    return torch.device("cuda")


def measured() -> dict[str, int]:
    """What benchmarks/cpu_or_gpu.py has found on this machine: GPU -> weights from which it is faster."""
    path = measured_file()
    return json.loads(path.read_text()) if path.is_file() else {}


def measured_file() -> Path:
    """Where the machine's own measurement is kept."""
    from headrace.kernels.runtime.cache import folder

    return folder() / "cpu_or_gpu.json"


def hidden_weights(hidden: Sequence[int], networks: int = 2) -> int:
    """Weights between the hidden layers of an actor and a critic: nearly all that a large network learns."""
    return networks * sum(a * b for a, b in pairwise(hidden))
