"""Whole iterations as one CUDA graph: T steps of policy and environments, and the update, launched by a single call. If
no graph can hold the environments' steps, acting is one graph and the update another.

What varies between iterations is on the device: the counters of the random draws, and the progress of the training. The
host writes these three numbers, replays the graph, and reads the metrics at the end. It waits for nothing in between.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from headrace.algorithms.base import Algorithm, past_warm_up
from headrace.algorithms.reduce import all_agree, one_learner, size_of
from headrace.core.fused import kernel_of
from headrace.core.terminal import tell
from headrace.data.rollout import tree_map
from headrace.parallel.collector import InlineCollector, mask_state, output_columns, steps
from headrace.parallel.cuda.capturable import Capturable, NotCapturable
from headrace.policies.examination import examine, modules_in

Capture = Callable[[Callable[[], None]], Callable[[], None]]  # a function -> what replays its kernels


class GraphedIteration:
    """Replays the iterations of a collector and an algorithm from a graph, from the second one on.

    The algorithm may use its `iteration` only in rng, and must count nothing else on the host. An iteration that cannot
    be captured runs step by step, and one line on stderr says why. capture: for tests; by default a CUDA graph. Of
    several learners either all have a graph, which contains their sums, or none has: NCCL requires that.
    """

    def __init__(self, collector: InlineCollector, algorithm: Algorithm, capture: Capture | None = None) -> None:
        self.collector, self.algorithm, self._capture = collector, algorithm, capture
        device = collector.rollout.device
        self._first_step = torch.zeros((), dtype=torch.int64, device=device)
        self._iteration = torch.zeros((), dtype=torch.int64, device=device)
        self._progress: Any = torch.zeros((), dtype=torch.float64, device=device)  # float64, as on the host
        self._rnn_state: Any = None  # recurrent state between iterations, always in the same memory
        self._metrics: dict[str, Tensor] = {}
        self._replays: list[Callable[[], None]] = []  # of graphs, one for each body
        self._captured: list[dict[str, Any]] = []  # host values that the graph contains, see _host_values()
        self.refused = ""  # why no graph is possible; empty if unknown

    def iterate(self, progress: float) -> dict[str, Tensor] | None:
        """Collect into collector.rollout and update; return the metrics, which the next call overwrites.

        Returns None if the caller has to do that step by step: at first, and without a graph.
        """
        if self.refused or not self.collector.steps or not past_warm_up(self.algorithm):
            return None
        if not self._replays or not _unchanged(self._captured, self._host_values()):
            self._make()
        if not self._replays:
            return None
        self._place_rnn_state()
        self._first_step.fill_(self.collector.steps)
        self._iteration.fill_(self.algorithm.iteration)
        self._progress.fill_(progress)
        self._run()
        self.algorithm.iteration += 1
        return self._metrics

    def _run(self) -> None:
        """Collect and update."""
        self._replays[0]()
        self.collector.steps += self.collector.rollout.num_steps

    def _bodies(self) -> list[Callable[[], None]]:
        """Functions that graphs are captured from."""
        return [self._body]

    def _body(self) -> None:
        """Run one iteration, which reads no changing number from the host."""
        collector = self.collector
        collector.rollout.continue_from(collector.rollout)
        collector.fill(self._first_step)
        self._place_rnn_state()
        with _counting_on_device(self.algorithm, self._iteration):
            self._metrics = self.algorithm.update(collector.rollout, self._progress)

    def _place_rnn_state(self) -> None:
        """Copy the collector's recurrent state to its fixed memory, if it is elsewhere."""
        if self.collector.rnn_state is not self._rnn_state:
            tree_map(lambda kept, new: kept.copy_(new), self._rnn_state, self.collector.rnn_state)
            self.collector.rnn_state = self._rnn_state

    def _make(self) -> None:
        """Run once with all checks, undo it, then capture. If a check fails there is no graph."""
        self._replays = []
        before = self._state()
        self._rnn_state = self.collector.rnn_state = tree_map(torch.clone, self.collector.rnn_state)
        try:
            self._warm_up()
        except NotCapturable as error:
            self.refused = str(error)
        reduce = getattr(self.algorithm, "reduce", one_learner)
        if not all_agree(not self.refused, reduce):
            self._refuse("another learner's iteration cannot be captured")
        self._load(*before)
        if self.refused:
            return
        self._place_rnn_state()
        capture = self._capture or partial(cuda_graph, alone=size_of(reduce) == 1)
        try:
            self._replays = [capture(body) for body in self._bodies()]
        except RuntimeError as error:  # torch's class for all of CUDA's errors
            self.refused = f"CUDA refused the capture ({str(error).splitlines()[0]})"
        if not all_agree(not self.refused, reduce):
            self._replays = []
            self._refuse("CUDA refused another learner's capture")
            self._load(*before)
        self._captured = self._host_values()

    def _state(self) -> tuple[dict[str, Any], Any]:
        """Tensors that a run of the bodies changes."""
        return self.algorithm.state_dict(), self.collector.state_dict()

    def _load(self, algorithm: dict[str, Any], collector: Any) -> None:
        """Undo a run of the bodies."""
        self.algorithm.load_state_dict(algorithm)
        self.collector.load_state_dict(collector)

    def _refuse(self, otherwise: str) -> None:
        """Report why there is no graph. otherwise: the reason to report if none is known here."""
        self.refused = self.refused or otherwise
        tell(f"no CUDA graph, going on step by step: {self.refused}")

    def _parts(self) -> dict[str, Any]:
        """Objects from which an iteration reads numbers."""
        algorithm = self.algorithm
        parts = {"algorithm": algorithm, "policy": algorithm.policy, "environment": self.collector.env}
        optimizers = {"optimizer": getattr(algorithm, "optimizer", None), **getattr(algorithm, "optimizers", {})}
        return parts | {name: optimizer for name, optimizer in optimizers.items() if optimizer is not None}

    def _host_values(self) -> list[dict[str, Any]]:
        """All host values that a graph contains: the examined policy and target networks, settings, numbers, and the
        identity of tensors."""
        algorithms = getattr(self.algorithm, "algorithms", {"": self.algorithm}).values()  # of groups of agents
        modules = [module for algorithm in algorithms for module in modules_in(algorithm)]
        seen = {str(number): examine(module) for number, module in enumerate(modules)}
        return [{**seen, "rollout": self.collector.rollout}, *map(_values, self._parts().values())]

    def close(self) -> None:
        """Free the graphs."""
        self._replays = []

    def _warm_up(self) -> None:
        parts = self._parts()
        numbers = {name: _numbers(part) for name, part in parts.items()}
        with _side_stream(self._first_step.device), Capturable() as strict:
            for body in self._bodies():
                body()
        self._metrics = {}
        gc.collect()
        for name, part in parts.items():
            changed = [k for k, value in _numbers(part).items() if numbers[name].get(k, value) != value]
            if changed:
                raise NotCapturable(f"the {name} counts {changed[0]} on the host, which a graph does not: use a tensor")
        if left := strict.left_behind():
            raise NotCapturable(
                f"an iteration keeps {left:,} bytes of new tensors, which a graph would overwrite: copy them into "
                "tensors made before"
            )


class GraphedParts(GraphedIteration):
    """Replays acting from one graph and the update from another, for environments whose steps no graph can hold.

    Between the two, a library or processes step the environments. If a kernel collects, there is no graph of acting.
    """

    def __init__(self, collector: InlineCollector, algorithm: Algorithm, capture: Capture | None = None) -> None:
        super().__init__(collector, algorithm, capture)
        rollout, policy = collector.rollout, collector.policy
        self._row = torch.zeros(1, dtype=torch.int64, device=rollout.device)
        self._random = torch.zeros(rollout.num_envs, policy.num_draws, device=rollout.device)

    def _run(self) -> None:
        if len(self._replays) > 1:
            self.collector.act = self._act  # type: ignore[method-assign]
        try:
            self.collector.collect()
        finally:
            vars(self.collector).pop("act", None)
        self._replays[0]()

    def _act(self, t: int, random: Tensor) -> None:
        """Fill row t, as InlineCollector.act() does."""
        self.collector.check_stop()
        self._row.fill_(t)
        self._random.copy_(random)
        self._replays[1]()

    def _bodies(self) -> list[Callable[[], None]]:
        return [self._body] if kernel_of(steps, self.collector, 0) is not None else [self._body, self._act_body]

    def _body(self) -> None:
        """Update from the collected rollout."""
        with _counting_on_device(self.algorithm, self._iteration):
            self._metrics = self.algorithm.update(self.collector.rollout, self._progress)

    @torch.no_grad()
    def _act_body(self) -> None:
        """Act for the row whose number is on the device."""
        rollout, row = self.collector.rollout, self._row
        observation, valid = (tree_map(partial(_row_of, row), x) for x in (rollout.observation, rollout.valid))
        output = self.collector.policy.act(observation, self._rnn_state, self._random)
        for name in output_columns(rollout):
            getattr(rollout, name).index_copy_(0, row, getattr(output, name).unsqueeze(0))
        if "rnn_state" in rollout.columns:
            tree_map(lambda column, x: column.index_copy_(0, row, x.unsqueeze(0)), rollout.rnn_state, self._rnn_state)
        tree_map(lambda kept, new: kept.copy_(new), self._rnn_state, mask_state(output.rnn_state, valid))

    def _state(self) -> tuple[dict[str, Any], Any]:
        return self.algorithm.state_dict(), tree_map(torch.clone, self.collector.rnn_state)

    def _load(self, algorithm: dict[str, Any], collector: Any) -> None:
        self.algorithm.load_state_dict(algorithm)
        self.collector.rnn_state = tree_map(torch.clone, collector)

    def _parts(self) -> dict[str, Any]:
        return {name: part for name, part in super()._parts().items() if name != "environment"}


def _row_of(row: Tensor, column: Tensor) -> Tensor:
    return column.index_select(0, row)[0]


def cuda_graph(body: Callable[[], None], alone: bool = True) -> Callable[[], None]:
    """Capture what a function launches on torch's current GPU. Returns a function that replays it in the same memory.

    alone: whether no other thread uses the GPU. torch's thread that watches NCCL's sums queries events at any time,
    which would end a capture.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global" if alone else "thread_local"):
        body()
    return graph.replay


@contextmanager
def _counting_on_device(algorithm: Any, counter: Tensor) -> Iterator[None]:
    """Replace the algorithm's `iteration` by a tensor within this block."""
    before, algorithm.iteration = algorithm.iteration, counter
    try:
        yield
    finally:
        algorithm.iteration = before


@contextmanager
def _side_stream(device: torch.device) -> Iterator[None]:
    """Launch on a side stream of a GPU within this block, which torch requires of runs before a capture."""
    if device.type != "cuda":
        yield
        return
    stream, main = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    stream.wait_stream(main)
    with torch.cuda.stream(stream):
        yield
    main.wait_stream(stream)


def _numbers(part: Any) -> dict[str, float]:
    """The numbers among an object's attributes."""
    return {name: value for name, value in vars(part).items() if isinstance(value, int | float)}


def _values(part: Any) -> dict[str, Any]:
    """The numbers, tensors and settings among an object's attributes, except the iteration, which is on the device."""
    kept = (int, float, str, Tensor)
    found = vars(part).items()
    return {k: v for k, v in found if (isinstance(v, kept) or is_dataclass(v)) and k != "iteration"}


def _unchanged(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> bool:
    """Tell whether values are unchanged: tensors and other objects identical, numbers and settings equal."""
    if len(before) != len(now):
        return False
    for one, other in zip(before, now, strict=True):
        if one.keys() != other.keys():
            return False
        for value, new in zip(one.values(), other.values(), strict=True):
            if value is not new and (isinstance(value, Tensor) or isinstance(new, Tensor) or value != new):
                return False
    return True
