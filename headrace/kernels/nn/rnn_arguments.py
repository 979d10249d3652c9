"""Arguments of the kernels of recurrent cells (headrace.kernels.nn.rnn_sequence and rnn_step)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

PART_SEQUENCES = np.uint64(24)  # sequences that a thread takes from the first step to the last
STEP_ROWS = np.uint64(64)  # rows of which a thread takes a single step
PACKED_ROWS = np.uint64(128)  # rows of 64 columns of a weight that are copied side by side: 32 KiB
PACKED = PACKED_ROWS * np.uint64(64)


class RNNArguments(NamedTuple):
    """K cells of H = `size` components on N = `envs` sequences of T = `steps`; all arrays float32 and flat.

    gates: 4 of an LSTM (input, forget, candidate, output), 3 of a GRU (reset, update, candidate). projected [K, T, N,
    gates * H]: the features' part of the gates' sums. weight [K, H, gates * H], bias [K, gates * H]: of the recurrent
    part. keep [T, N]: 0 where the state is reset after a step. gate: as projected, the gates' outputs. before, cell [K,
    T, N, H]: the state before each step, cell of an LSTM alone. extra [K, T, N, H]: an LSTM's tanh of the cell after
    the step, a GRU's recurrent part of the candidate. output [K, T, N, H].
    """

    copies: np.uint64
    steps: np.uint64
    envs: np.uint64
    size: np.uint64
    gates: np.uint64
    projected: np.ndarray
    weight: np.ndarray
    bias: np.ndarray
    keep: np.ndarray
    gate: np.ndarray
    before: np.ndarray
    cell: np.ndarray
    extra: np.ndarray
    output: np.ndarray


class RNNGradients(NamedTuple):
    """A loss's gradients, float32 and flat. burn_in: the step before which no gradient goes back.

    weight [K, gates * H, H]: the arguments' weight, transposed. output [K, T, N, H]: given. gate, recurrent [K, T, N,
    gates * H]: at the features' and the recurrent part of the gates' sums; recurrent of a GRU alone, for an LSTM they
    are the same. before, cell [K, N, H]: zeros at first, carried from step to step.
    """

    burn_in: np.uint64
    weight: np.ndarray
    output: np.ndarray
    gate: np.ndarray
    recurrent: np.ndarray
    before: np.ndarray
    cell: np.ndarray


class RNNStepArguments(NamedTuple):
    """One step of K cells of H = `size` components on N = `envs` rows; all arrays float32 and flat.

    features [K, N, inputs]. weight_input [K, inputs, gates * H], weight_hidden [K, H, gates * H], bias_input and
    bias_hidden [K, gates * H]. state, after [N, K, 1 or 2, H]: the recurrent state before and after the step, whose
    rows are state_row apart and whose cells state_cell. output [K, N, H]. scratch: for each worker 4 * H for each of
    the STEP_ROWS rows that it computes at a time, and PACKED.
    """

    copies: np.uint64
    envs: np.uint64
    inputs: np.uint64
    size: np.uint64
    gates: np.uint64
    state_row: np.uint64
    state_cell: np.uint64
    features: np.ndarray
    weight_input: np.ndarray
    weight_hidden: np.ndarray
    bias_input: np.ndarray
    bias_hidden: np.ndarray
    state: np.ndarray
    after: np.ndarray
    output: np.ndarray
    scratch: np.ndarray
