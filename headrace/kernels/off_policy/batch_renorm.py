"""Batch renormalisation on blocks of samples, forward and backward: headrace.policies.normalization.BatchRenorm.

A row of a block has one feature of its samples, and a function here does some rows of all blocks, so that a feature's
moments are of one thread alone. Its table is made by headrace.kernels.off_policy.batch_renorm_layout.
"""

from __future__ import annotations

import math

import numpy as np

from headrace.kernels.nn.layout import BLOCK, WIDTH
from headrace.kernels.nn.simd import fma, load, splat, store, total
from headrace.kernels.off_policy import batch_renorm_layout as col
from headrace.kernels.runtime.jit import INNER, njit

F, U = np.float32, np.uint64
_0, _1, _2, _3 = U(0), U(1), U(2), U(3)
_ZERO, _ONE = F(0), F(1)


@njit(**INNER)
def _mean(scratch, row, weight):
    """Sum over samples of weight times value; row, weight: where they are in a block."""
    found = splat(_ZERO)
    for b in range(_0, U(len(scratch))):
        block = scratch[b]
        for i in range(_0, BLOCK, WIDTH):
            found = fma(load(block, weight + i), load(block, row + i), found)
    return total(found)


@njit(**INNER)
def _variance(scratch, row, weight, mean):
    """Sum over samples of weight times (value - mean)^2."""
    found, center = splat(_ZERO), splat(mean)
    for b in range(_0, U(len(scratch))):
        block = scratch[b]
        for i in range(_0, BLOCK, WIDTH):
            x = load(block, row + i) - center
            found = fma(x * x, load(block, weight + i), found)
    return total(found)


@njit(**INNER)
def _corrections(norms, k, renorm, f, mean, std):
    """(r, d) of feature f of a batch with these moments, which are then added to the running ones."""
    limits, moments = renorm.limits[k], renorm.moments
    mean_at, std_at = norms[k, col.MEAN] + f, norms[k, col.STD] + f
    running_mean, running_std = moments[mean_at], moments[std_at]
    r, d = _ONE, _ZERO
    if renorm.batches[k] >= limits[col.WARM_UP]:
        r = min(max(std / running_std, _ONE / limits[col.R_MAX]), limits[col.R_MAX])
        d = min(max((mean - running_mean) / running_std, -limits[col.D_MAX]), limits[col.D_MAX])
    moments[mean_at] = running_mean + (mean - running_mean) * limits[col.TAKE]
    moments[std_at] = running_std + (std - running_std) * limits[col.TAKE]
    return r, d


@njit(**INNER)
def normalize(norms, k, parameters, renorm, scratch, first, count, weight, factor):
    """Rows first .. first + count - 1 of norm k, by the moments of the samples, corrected towards the running ones.

    weight: where a block has its samples' weights; times factor they sum to 1."""
    for f in range(first, first + count):
        source, output = norms[k, col.SOURCE] + f * BLOCK, norms[k, col.OUTPUT] + f * BLOCK
        mean = _mean(scratch, source, weight) * factor
        std = F(math.sqrt(_variance(scratch, source, weight, mean) * factor + renorm.limits[k, col.EPS]))
        r, d = _corrections(norms, k, renorm, f, mean, std)
        found = norms[k, col.FOUND] + f * U(4)
        renorm.found[found], renorm.found[found + _1] = mean, std
        renorm.found[found + _2], renorm.found[found + _3] = r, d
        gain = parameters[norms[k, col.WEIGHT] + f]
        scale, shift = gain * r / std, splat(gain * d + parameters[norms[k, col.BIAS] + f])
        center = splat(mean)
        for b in range(_0, U(len(scratch))):
            block = scratch[b]
            for i in range(_0, BLOCK, WIDTH):
                store(block, output + i, (load(block, source + i) - center) * scale + shift)


@njit(**INNER)
def backward(norms, k, parameters, renorm, gradient, scratch, first, count, weight, factor):
    """From the gradient at the outputs of normalize() to that at its inputs, in place; those of the norm's weight and
    bias go into `gradient`, laid out as the parameters. The formula: headrace.policies.normalization."""
    for f in range(first, first + count):
        source, grad = norms[k, col.SOURCE] + f * BLOCK, norms[k, col.OUTPUT_GRAD] + f * BLOCK
        found = norms[k, col.FOUND] + f * U(4)
        mean, std = renorm.found[found], renorm.found[found + _1]
        r, d = renorm.found[found + _2], renorm.found[found + _3]
        sums, products, center = splat(_ZERO), splat(_ZERO), splat(mean)
        for b in range(_0, U(len(scratch))):
            block = scratch[b]
            for i in range(_0, BLOCK, WIDTH):
                g = load(block, grad + i)
                sums, products = sums + g, fma(g, load(block, source + i) - center, products)
        summed, product = total(sums), total(products)
        gradient[norms[k, col.WEIGHT] + f] = product / std * r + summed * d
        gradient[norms[k, col.BIAS] + f] = summed
        scale, slope, shift = parameters[norms[k, col.WEIGHT] + f] * r / std, product / (std * std), splat(summed)
        for b in range(_0, U(len(scratch))):
            block = scratch[b]
            for i in range(_0, BLOCK, WIDTH):
                x = load(block, source + i) - center
                share = (x * slope + shift) * (load(block, weight + i) * factor)
                store(block, grad + i, (load(block, grad + i) - share) * scale)


@njit(**INNER)
def normalize_by_running(norms, k, parameters, renorm, block):
    """All rows of norm k in one block, by the running moments."""
    for f in range(_0, norms[k, col.FEATURES]):
        source, output = norms[k, col.SOURCE] + f * BLOCK, norms[k, col.OUTPUT] + f * BLOCK
        scale = parameters[norms[k, col.WEIGHT] + f] / renorm.moments[norms[k, col.STD] + f]
        shift = splat(parameters[norms[k, col.BIAS] + f] - renorm.moments[norms[k, col.MEAN] + f] * scale)
        for i in range(_0, BLOCK, WIDTH):
            store(block, output + i, load(block, source + i) * scale + shift)


@njit(**INNER)
def backward_by_running(norms, k, parameters, renorm, block):
    """From the gradient at the outputs of normalize_by_running() to that at its inputs, in place."""
    for f in range(_0, norms[k, col.FEATURES]):
        grad = norms[k, col.OUTPUT_GRAD] + f * BLOCK
        scale = parameters[norms[k, col.WEIGHT] + f] / renorm.moments[norms[k, col.STD] + f]
        for i in range(_0, BLOCK, WIDTH):
            store(block, grad + i, load(block, grad + i) * scale)
