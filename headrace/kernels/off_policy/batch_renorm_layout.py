"""Tables of batch renormalisation (headrace.kernels.off_policy.batch_renorm), made in plain Python: uint64
[N, COLUMNS], of a network whose inputs and outputs of hidden layers are normalised. Norm k is of what layer k reads.

    features            F
    source, output      offsets in a block's scratch of its inputs, and of its outputs
    output_grad         offset in scratch of the loss's gradient at its outputs; backward() makes it that at its inputs
    weight, bias        offsets in the parameters
    mean, std           offsets in Renorm.moments: F running means and F running standard deviations
    found               offset in Renorm.found: of each feature mean, standard deviation, r and d of the last batch
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.kernels.nn import layer_table
from headrace.kernels.nn.layout import BLOCK

COLUMNS = 9
FEATURES, SOURCE, OUTPUT, OUTPUT_GRAD, WEIGHT, BIAS, MEAN, STD, FOUND = (np.uint64(i) for i in range(COLUMNS))
EPS, TAKE, R_MAX, D_MAX, WARM_UP = (np.uint64(i) for i in range(5))  # of a row of Renorm.limits


class Renorm(NamedTuple):
    """Of one network, or of several side by side; float32. moments: running ones of all norms. found: those of the last
    batch. batches [N]: how many batches each norm has seen. limits [N, 5]: epsilon, weight of a batch in the running
    moments, limits of r and d, batches until these correct."""

    moments: np.ndarray
    found: np.ndarray
    batches: np.ndarray
    limits: np.ndarray


def insert_norms(
    layers: np.ndarray, place: int, starts: list[tuple[int, int]], moments: list[int], c: int, number: int
) -> tuple[np.ndarray, int]:
    """Put norms before all layers of a table of stepwise_layout, of network c of so many side by side: (their table,
    where what they need in scratch ends).

    place: where that begins. starts: offsets of weight and bias of each norm in the parameters. moments: of each norm
    the offset in Renorm.moments, of [2, number, F]: means and standard deviations."""
    norms = np.zeros((len(layers), COLUMNS), np.uint64)
    for k, (layer, (weight, bias), first) in enumerate(zip(layers, starts, moments, strict=True)):
        features, grad = int(layer[layer_table.INPUTS]), layer[layer_table.SOURCE_GRAD]
        source = layers[k - 1, layer_table.OUTPUT] if k else layer[layer_table.SOURCE]
        mean, std = first + c * features, first + (number + c) * features
        norms[k] = (features, source, place, grad, weight, bias, mean, std, 2 * first + 4 * c * features)
        layer[layer_table.SOURCE] = place
        place += features * int(BLOCK)
    return norms, place
