"""export(): writes a policy to a file that needs no Headrace, after comparing it with the policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from headrace.core.text import did_you_mean
from headrace.core.writing import free, replacing
from headrace.data.flat_action import FlatAction
from headrace.deploy import c_writer, numpy_writer, onnx_writer
from headrace.deploy.comparison import Comparison, compare
from headrace.deploy.graph import STATE, Graph
from headrace.deploy.policy_graph import describe
from headrace.deploy.readers import READERS
from headrace.deploy.traced import trace, traceable
from headrace.policies.base import Policy, check_policy
from headrace.runs.run import Run, load


class Target(NamedTuple):
    """A format: the suffix of its files, and a function that writes them from a graph and a name for functions."""

    suffix: str
    write: Callable[[Graph, str], bytes]


TARGETS = {
    "onnx": Target(".onnx", lambda graph, name: onnx_writer.write(graph)),
    "numpy": Target(".py", lambda graph, name: numpy_writer.write(graph)),
    "c": Target(".h", c_writer.write),
}


@dataclass(frozen=True)
class Export:
    """A written file, and its comparison with the policy."""

    path: Path
    comparison: Comparison
    interface: str  # inputs and outputs, in words


def export(policy: Policy | Run | str | Path, to: str, output: str | Path | None = None, value: bool = False) -> Export:
    """Write a policy's most likely actions to a file that needs neither Headrace nor PyTorch.

    policy: a policy, or a run or its folder (the best policy, or the last if there is no best). to: "onnx", a model;
    "numpy", one file of Python that needs only NumPy; "c", one C99 header. Normalisation, scaling and bounds of actions
    and recurrent state are in the file. output: the file, replaced if it exists; None for policy.onnx, policy.py or
    policy.h, or the first free name of policy_2.onnx ... value: write the critic's value, too.
    A policy of your own class, derived from one of Headrace's without recurrent state, can only be exported to onnx, by
    torch.onnx.
    The file is compared with the policy before it is written: on 1,000 observations or more, in batches of four sizes.
    Raises TypeError or ValueError for policies that cannot be exported, ArithmeticError if the file differs from the
    policy by more than 1e-5 max(1, |y|), ImportError without onnx, FileNotFoundError without a C compiler.
    """
    if to not in TARGETS:
        raise ValueError(f"unknown format {to!r}{did_you_mean(to, TARGETS)}: use {', '.join(TARGETS)}")
    target = TARGETS[to]
    path = free(f"policy{target.suffix}") if output is None else Path(output)
    if path.suffix != target.suffix:
        raise ValueError(f"a file for {to} ends in {target.suffix}, got {str(path)!r}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} to")
    chosen: Any = policy.path if isinstance(policy, Run) else policy
    if isinstance(chosen, str | Path):
        chosen = load(chosen)
    check_policy(chosen, "export")
    if isinstance(chosen.action_space, FlatAction):
        raise TypeError(
            f"its actions are of several kinds, {chosen.action_space.whole}, and an exported policy has one "
            "array of one kind: use its predict()"
        )
    name = c_writer.identifier(path.stem)
    graph, content = _written(chosen, to, name, value)
    with READERS[to](graph, content, name) as reader:
        comparison = compare(chosen, graph, reader)
    with replacing(path, "the policy") as fresh:
        fresh.write_bytes(content)
    return Export(path, comparison, _interface(graph))


def _written(policy: Policy, to: str, name: str, value: bool) -> tuple[Graph, bytes]:
    """Make a policy's graph and the file's content. Raises TypeError or ValueError if it cannot be exported."""
    if value and (names := getattr(policy, "critic_members", ())):
        raise ValueError(f"the critic sees {', '.join(names)}, which only training has: leave out --value")
    try:
        graph = describe(policy, value)
    except TypeError as error:
        if not traceable(policy):
            raise
        if to == "onnx":
            return trace(policy, value)
        raise TypeError(f"{error}, or export to onnx, which torch.onnx does") from error
    return graph, TARGETS[to].write(graph, name)


def _interface(graph: Graph) -> str:
    """`observation float32 [N, 4] -> action int64 [N], logits float32 [N, 2]`."""

    def shown(name: str, dtype: object, shape: tuple[int, ...]) -> str:
        return f"{name} {dtype} [{', '.join(map(str, ('N', *shape)))}]"

    given = [shown(part.value.name, part.dtype, part.value.shape) for part in graph.inputs]
    given += [shown(STATE, "float32", graph.state.shape)] if graph.state_size else []
    outputs = [
        shown(name, graph.action_space.dtype if name == "action" else "float32", value.shape)
        for name, value in graph.outputs.items()
    ]
    return f"{', '.join(given)} -> {', '.join(outputs)}"
