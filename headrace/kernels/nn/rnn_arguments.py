"""What the kernel of recurrent cores is handed (headrace.kernels.nn.rnn_sequence)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

CHUNK = np.uint64(24)  # sequences that a thread takes from the first step to the last


class Job(NamedTuple):
    """K cores of H = `size` components on N = `envs` sequences of T = `steps`; all arrays float32 and flat.

    gates: 4 of an LSTM (enter, keep, fresh, leave), 3 of a GRU (reset, keep, fresh). projected [K, T, N, gates * H]:
    what features say to the gates. weight [K, H, gates * H], bias [K, gates * H]: what memory says. keep [T, N]: 0
    where memory begins anew after a step. gate: as projected, what comes out of the gates. before, cell [K, T, N, H]:
    the state before each step, cell of an LSTM alone. extra [K, T, N, H]: an LSTM's tanh of the cell after the step, a
    GRU's memory of the fresh gate. output [K, T, N, H].
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


class Slopes(NamedTuple):
    """Slopes of a loss, float32 and flat. burn_in: the step before which none go back.

    weight [K, gates * H, H]: the job's, turned. output [K, T, N, H]: given. gate, remembered [K, T, N, gates * H]: in
    what features and memory say to the gates; remembered of a GRU alone, for an LSTM they are the same. before, cell
    [K, N, H]: zeros at first, what is carried from step to step.
    """

    burn_in: np.uint64
    weight: np.ndarray
    output: np.ndarray
    gate: np.ndarray
    remembered: np.ndarray
    before: np.ndarray
    cell: np.ndarray
