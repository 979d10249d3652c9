"""The columns of a layer table: uint64 [layers, len(COLUMNS)], a row for each dense layer in the order of computation.

headrace.kernels.nn.layout builds such tables. Offsets count float32. Nothing here needs Numba.

    inputs, outputs     widths of the layer
    weight, bias        offsets in the parameters
    activation          code of the activation (headrace.kernels.nn.activation_table)
    source              offset in a block's scratch of what the layer reads
    output              offset in scratch of the layer's outputs, after the activation
    activation_grad     offset in scratch of the activation's derivative, where the output does not determine it
    output_grad         offset in scratch of the loss's gradient at the output; backward() makes it the gradient before
                        the activation
    source_grad         offset in scratch where backward() writes the gradient at the source; NOWHERE for no gradient
    stride              distance between two rows: of the weight's gradient, and of the transposed factor
    clears_source_grad  1 where the layer is the first to write source_grad and does not add to it
    norm, norm_bias     offsets in the parameters of layer normalisation's weight and bias; NOWHERE without
    normalized          offset in scratch of the normalised sums, then of a row of 1 / standard deviation
    weight_grad         offset in the padded gradient of all parameters, rows `stride` apart
    bias_grad           offset in that gradient
    norm_grad           offset in that gradient of the norm's weight, then of its bias
"""

from __future__ import annotations

import numpy as np

COLUMNS = (
    *("inputs", "outputs", "weight", "bias", "activation", "source", "output"),
    *("activation_grad", "output_grad", "source_grad", "stride"),
    *("clears_source_grad", "norm", "norm_bias", "normalized", "weight_grad", "bias_grad", "norm_grad"),
)
_NUMBERS = tuple(map(np.uint64, range(len(COLUMNS))))
INPUTS, OUTPUTS, WEIGHT, BIAS, ACTIVATION, SOURCE, OUTPUT = _NUMBERS[:7]
ACTIVATION_GRAD, OUTPUT_GRAD, SOURCE_GRAD, STRIDE = _NUMBERS[7:11]
CLEARS_SOURCE_GRAD, NORM, NORM_BIAS, NORMALIZED, WEIGHT_GRAD, BIAS_GRAD, NORM_GRAD = _NUMBERS[11:]
NOWHERE = np.uint64(2**63)


def fill_row(row: np.ndarray, **values: int | np.uint64) -> None:
    """Set columns of a table's row by their names."""
    for name, value in values.items():
        row[COLUMNS.index(name)] = value
