"""Run written files as their users do, to compare them with the policy."""

from __future__ import annotations

import ctypes
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.packages import require
from headrace.deploy import numpy_writer
from headrace.deploy.graph import STATE, Array, Graph
from headrace.deploy.onnx_writer import NEEDED, NEXT_STATE

Outputs = dict[str, Array]
# a step: a batch of observations as Policy.predict() takes it and the recurrent state -> the graph's outputs
Reader = Callable[[Any, Array | None], Outputs]
FLAGS = ("-std=c99", "-O2", "-Wall", "-Wextra", "-pedantic")

DRIVER = """#include "PREFIX.h"
/* Rows of observations and of all outputs, one after the other. */
void run(int rows, const float *observation, float *state, float *results) {
    for (int row = 0; row < rows; row++) {
        PREFIX_outputs outputs;
        PREFIX_forward(observation + row * GUARD_OBSERVATION_SIZE, state + row * GUARD_STATE_SIZE, &outputs);
        for (int i = 0; i < (int)(sizeof outputs / sizeof(float)); i++) *results++ = ((const float *)&outputs)[i];
    }
}
void act(const float *observation, float *state, float *action) { PREFIX_act(observation, state, action); }
"""


def parts(graph: Graph, observation: Any) -> Outputs:
    """Arrays of a batch of observations, by the names and in the dtypes of the graph's inputs."""
    found = {}
    for given in graph.inputs:
        part = observation
        for key in given.keys:
            part = part[key]
        found[given.value.name] = np.asarray(part, given.dtype)
    return found


@contextmanager
def numpy_reader(graph: Graph, content: bytes, name: str) -> Iterator[Reader]:
    """Run the class in a Python file. Actions are those of its predict()."""
    policy = numpy_writer.load(content)

    def step(observation: Any, state: Array | None) -> Outputs:
        outputs: Outputs = policy.forward(*parts(graph, observation).values(), state)
        return outputs | {"action": policy.predict(observation, state)[0]}

    yield step


@contextmanager
def onnx_reader(graph: Graph, content: bytes, name: str) -> Iterator[Reader]:
    """Run an ONNX model with onnxruntime on the CPU. Raises ImportError without onnxruntime."""
    require("onnxruntime", NEEDED)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # more wait for each other in networks of this size
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def step(observation: Any, state: Array | None) -> Outputs:
        given = parts(graph, observation) | ({} if state is None else {STATE: state})
        outputs = dict(zip(names, session.run(names, given), strict=True))
        return {STATE if name == NEXT_STATE else name: array for name, array in outputs.items()}

    yield step


@contextmanager
def c_reader(graph: Graph, content: bytes, name: str) -> Iterator[Reader]:
    """Compile and run a C header. Raises FileNotFoundError without a compiler, RuntimeError if it does not compile."""
    with tempfile.TemporaryDirectory() as folder:
        yield compiled(graph, content, name, Path(folder))


def compiled(graph: Graph, content: bytes, name: str, folder: Path, *flags: str) -> Reader:
    """A header, compiled in a folder with FLAGS and other flags."""
    library = ctypes.CDLL(str(shared_library(content, name, folder, *flags)))
    outputs = {key: value.shape for key, value in graph.outputs.items() if key != STATE}
    width = sum(math.prod(shape) for shape in outputs.values())

    def step(observation: Any, state: Array | None) -> Outputs:
        arrays = [array.reshape(len(array), -1) for array in parts(graph, observation).values()]
        rows = np.concatenate(arrays, 1).astype(np.float32)
        after = np.zeros((len(rows), 0), np.float32) if state is None else state.astype(np.float32, order="C")
        results = np.empty((len(rows), width), np.float32)
        library.run(len(rows), *(x.ctypes.data_as(ctypes.c_void_p) for x in (rows, after, results)))
        ends = np.cumsum([math.prod(shape) for shape in outputs.values()])
        columns = np.split(results, ends[:-1], 1)
        found = {key: x.reshape(len(rows), *shape) for (key, shape), x in zip(outputs.items(), columns, strict=True)}
        return found if state is None else found | {STATE: after}

    return step


def shared_library(content: bytes, name: str, folder: Path, *flags: str) -> Path:
    """A library with `run` (rows) and `act` (one observation) from a header."""
    (folder / f"{name}.h").write_bytes(content)
    source, target = folder / "driver.c", folder / f"{name}.so"
    source.write_text(DRIVER.replace("PREFIX", name).replace("GUARD", name.upper()))
    command = [compiler(), *FLAGS, *flags, "-shared", "-fPIC", str(source), "-o", str(target), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the exported header does not compile with {' '.join(command)}:\n{done.stderr}")
    return target


def compiler() -> str:
    """The C compiler: $CC, or cc, gcc or clang on the PATH. Raises FileNotFoundError without one."""
    for name in filter(None, (os.environ.get("CC"), "cc", "gcc", "clang")):
        if shutil.which(name):
            return name
    raise FileNotFoundError(
        "an exported header is compiled and compared with the policy, and there is no C compiler: install gcc or "
        "clang, or name one in the environment variable CC"
    )


READERS = {"numpy": numpy_reader, "onnx": onnx_reader, "c": c_reader}
