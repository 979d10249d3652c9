"""Whole iterations as one CUDA graph: T steps of policy and worlds, and the learning, launched by a single call.

What varies between iterations lies on the device: the counters behind the randomness, and how far the training is. The
host writes those three numbers, replays, and reads metrics when all is done; nothing in between waits for it.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from headrace.algorithms.base import Algorithm
from headrace.data.rollout import tree_map
from headrace.parallel.capturable import Capturable, NotCapturable
from headrace.parallel.collector import InlineCollector

Capture = Callable[[Callable[[], None]], Callable[[], None]]  # of a function that launches, what launches it all again


class GraphedIteration:
    """The iterations of a collector and an algorithm, from the second on replayed from a graph.

    The algorithm gives its `iteration` to rng alone, and counts nothing else on the host. What cannot be captured goes
    on step by step, and one line on stderr says why. capture: for tests; by default a CUDA graph.
    """

    def __init__(self, collector: InlineCollector, algorithm: Algorithm, capture: Capture | None = None) -> None:
        self.collector, self.algorithm, self._capture = collector, algorithm, capture or cuda_graph
        device = collector.rollout.device
        self._first_step = torch.zeros((), dtype=torch.int64, device=device)
        self._iteration = torch.zeros((), dtype=torch.int64, device=device)
        self._progress: Any = torch.zeros((), dtype=torch.float64, device=device)  # as precise as the host's
        self._rnn_state: Any = None  # what the policy remembers from one iteration to the next, always in one place
        self._metrics: dict[str, Tensor] = {}
        self._replay: Callable[[], None] | None = None
        self.refused = ""  # why there is no graph, where there can be none

    def iterate(self, progress: float) -> dict[str, Tensor] | None:
        """Collect into collector.rollout and learn from it; give the metrics, which the next call overwrites.

        None where that is still to be done step by step: at first, and where there is no graph.
        """
        if self.refused or not self.collector.steps or not getattr(self.algorithm, "past_warm_up", _always)():
            return None
        if self._replay is None:
            self._make()
        if self._replay is None:
            return None
        self._place_memory()
        self._first_step.fill_(self.collector.steps)
        self._iteration.fill_(self.algorithm.iteration)
        self._progress.fill_(progress)
        self._replay()
        self.collector.steps += self.collector.rollout.num_steps
        self.algorithm.iteration += 1
        return self._metrics

    def _body(self) -> None:
        """One iteration, in which nothing depends on numbers of the host that change."""
        collector = self.collector
        collector.rollout.continue_from(collector.rollout)
        collector.fill(self._first_step)
        self._place_memory()
        with _counting_on_device(self.algorithm, self._iteration):
            self._metrics = self.algorithm.update(collector.rollout, self._progress)

    def _place_memory(self) -> None:
        """Where the collector's memory lies elsewhere, copy it to its place."""
        if self.collector.rnn_state is not self._rnn_state:
            tree_map(lambda kept, new: kept.copy_(new), self._rnn_state, self.collector.rnn_state)
            self.collector.rnn_state = self._rnn_state

    def _make(self) -> None:
        """Rehearse once, strictly, and forget it; then capture. It stays without a graph where that is refused."""
        before = self.algorithm.state_dict(), self.collector.state_dict()
        self._rnn_state = self.collector.rnn_state = tree_map(torch.clone, self.collector.rnn_state)
        try:
            self._warm_up()
        except NotCapturable as error:
            self.refused = str(error)
            print(f"no CUDA graph, going on step by step: {error}", file=sys.stderr, flush=True)
        self.algorithm.load_state_dict(before[0])
        self.collector.load_state_dict(before[1])
        if not self.refused:
            self._place_memory()
            self._replay = self._capture(self._body)

    def _warm_up(self) -> None:
        parts = {"algorithm": self.algorithm, "policy": self.algorithm.policy, "environment": self.collector.env}
        numbers = {name: _numbers(part) for name, part in parts.items()}
        with _side_stream(self._first_step.device), Capturable() as strict:
            self._body()
        self._metrics = {}
        gc.collect()
        for name, part in parts.items():
            changed = [k for k, value in _numbers(part).items() if numbers[name].get(k, value) != value]
            if changed:
                raise NotCapturable(f"the {name} counts {changed[0]} on the host, and a graph would not: use a tensor")
        if left := strict.left_behind():
            raise NotCapturable(
                f"an iteration leaves {left:,} bytes of new tensors behind, which a graph would overwrite: copy what "
                "is to stay into tensors made before"
            )


def _always() -> bool:
    """Algorithms without a beginning of their own are steady from the first iteration on."""
    return True


def cuda_graph(body: Callable[[], None]) -> Callable[[], None]:
    """Capture what a function launches on torch's current GPU; give what launches it again, from the same memory."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    return graph.replay


@contextmanager
def _counting_on_device(algorithm: Any, counter: Tensor) -> Iterator[None]:
    """Let the algorithm's iteration be a tensor inside."""
    before, algorithm.iteration = algorithm.iteration, counter
    try:
        yield
    finally:
        algorithm.iteration = before


@contextmanager
def _side_stream(device: torch.device) -> Iterator[None]:
    """Launch on another stream of a GPU inside, as torch asks of what is run before it is captured."""
    if device.type != "cuda":
        yield
        return
    stream, main = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    stream.wait_stream(main)
    with torch.cuda.stream(stream):
        yield
    main.wait_stream(stream)


def _numbers(part: Any) -> dict[str, float]:
    """The numbers that an object holds on the host."""
    return {name: value for name, value in vars(part).items() if isinstance(value, int | float)}
