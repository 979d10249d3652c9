"""Exported policies: largest difference from the policy, size of the file, and time of one action, by format.

Six kinds of policies in each format that takes them. Times are of one observation: policy.predict(), the predict() of
the Python file, a session of onnxruntime with one thread, and the C function in a loop in C. Weights are random.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

import headrace as hr
from benchmarks.common import Neighbours, Row, finish, parser, table
from headrace.deploy import c_writer, numpy_writer
from headrace.deploy.comparison import graph_state, sample
from headrace.deploy.exporter import TARGETS, export
from headrace.deploy.policy_graph import describe
from headrace.deploy.readers import compiled, onnx_reader
from headrace.policies.actor_q import ActorQ
from headrace.policies.recurrent import RecurrentActorCritic

VECTOR, ACTION = hr.Box(-3, 3, (17,)), hr.Box(-1, 1, (6,))
POLICIES: dict[str, Callable[[], Any]] = {
    "MLP, 64 x 64": lambda: hr.ActorCritic(hr.Box(-3, 3, (4,)), hr.Discrete(2)),
    "CNN, Nature's, 84 x 84 x 4": lambda: hr.ActorCritic(hr.Box(0, 255, (84, 84, 4), np.uint8), hr.Discrete(6)),
    "GRU, 64": lambda: RecurrentActorCritic(VECTOR, hr.Discrete(4)),
    "MultiDiscrete, 64 x 64": lambda: hr.ActorCritic(VECTOR, hr.MultiDiscrete([3, 4, 5])),
    "squashed (SAC), 256 x 256": lambda: ActorQ(VECTOR, ACTION),
    "normalised, 64 x 64": lambda: hr.ActorCritic(VECTOR, ACTION, normalize_observation=True),
}
COLUMNS = ("policy", "format", "difference", "kB", "us", "predict_us")
ROWS = 1000  # observations in the loop in C


def main() -> None:
    options = parser(__doc__.splitlines()[0]).parse_args()
    seconds = 0.02 if options.quick else 0.5
    torch.set_num_threads(1)
    neighbours, rows = Neighbours(), list[Row]()
    for name, make in POLICIES.items():
        if options.quick and "CNN" in name:
            continue
        policy, generator = make(), torch.Generator().manual_seed(0)
        with torch.no_grad():
            for weight in policy.parameters():  # initial policies give outputs of nearly 0, without differences
                weight.add_(torch.randn(weight.shape, generator=generator), alpha=0.02)
        rows += [measured(name, policy, to, seconds) for to in TARGETS if to != "c" or "CNN" not in name]
    print(table(rows, COLUMNS))
    print("difference: the largest from the policy, of logits and means; us: median time of one action, microseconds")
    finish("export", rows, options, neighbours)


def measured(name: str, policy: Any, to: str, seconds: float) -> Row:
    """One policy in one format."""
    with tempfile.TemporaryDirectory() as folder:
        written = export(policy, to, Path(folder) / f"policy{TARGETS[to].suffix}")
        content = written.path.read_bytes()
        differences = written.comparison.differences
        graph = describe(policy)
        observation = sample(policy.observation_space, policy.encoder, ROWS, np.random.default_rng(0))
        first, state = observation[0], policy.initial_state(1)
        row: Row = {"library": "headrace", "config": name, "policy": name, "format": to}
        row |= {"difference": max(differences[key] for key in differences if key == graph.scores)}
        row |= {"kB": len(content) / 1000, "us": microseconds(to, graph, content, observation, seconds)}
        return row | {"predict_us": timed(lambda: policy.predict(first, state), seconds)}


def microseconds(to: str, graph: Any, content: bytes, observation: Any, seconds: float) -> float:
    """The median time of one action of an exported policy."""
    if to == "numpy":
        policy, state = numpy_writer.load(content), graph_state(graph, 1)
        return timed(lambda: policy.predict(observation[0], state), seconds)
    if to == "onnx":
        state = graph_state(graph, 1)
        with onnx_reader(graph, content, "") as reader:
            return timed(lambda: reader(observation[:1], state), seconds)
    with tempfile.TemporaryDirectory() as folder:
        step = compiled(graph, content, c_writer.identifier("policy"), Path(folder))
        state = graph_state(graph, ROWS)
        return timed(lambda: step(observation, state), seconds) / ROWS


def timed(call: Callable[[], object], seconds: float) -> float:
    """The median time of a call, in microseconds."""
    call()
    times, end = list[float](), time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return 1e6 * median(times)


if __name__ == "__main__":
    main()
