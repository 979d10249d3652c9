"""Running statistics against NumPy, merging, and PopArt: statistics change, values do not."""

import pytest
import torch

from headrace.policies.networks import Readout
from headrace.policies.normalization import (
    BatchRenorm,
    Moments,
    ObservationNormalizer,
    ReturnNormalizer,
    RunningStatistics,
)


def rows(seed=0, count=1000):
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(seed)) * torch.tensor([1.0, 5.0, 0.1]) + 1000.0


def test_statistics_in_parts_equal_those_of_all_valid_rows():
    data, statistics = rows(), RunningStatistics(3)
    valid = torch.arange(1000) % 7 != 0
    for part in range(0, 1000, 130):
        statistics.merge(Moments.of(data[part : part + 130], valid[part : part + 130]))
    kept = data[valid].double()
    assert statistics.count == valid.sum()
    torch.testing.assert_close(statistics.mean, kept.mean(0), rtol=1e-12, atol=0)
    torch.testing.assert_close(statistics.variance(), kept.var(0, correction=0), rtol=1e-9, atol=0)


@pytest.mark.parametrize("first", [500, 130, 999, 0])
def test_merged_moments_of_two_parts_equal_those_of_the_whole(first):
    data, valid = rows(), torch.arange(1000) % 7 != 0
    whole = Moments.of(data, valid)
    merged = Moments.of(data[:first], valid[:first]).merge(Moments.of(data[first:], valid[first:]))
    assert merged.count == whole.count == valid.sum()
    torch.testing.assert_close(merged.mean, whole.mean, rtol=1e-14, atol=0)
    torch.testing.assert_close(merged.squares, whole.squares, rtol=1e-9, atol=0)


@pytest.mark.parametrize("keep", [1.0, 0.9])
def test_statistics_updated_by_merged_moments_equal_those_updated_by_rows(keep):
    by_rows, by_moments, valid = (
        RunningStatistics(3, keep),
        RunningStatistics(3, keep),
        torch.ones(500, dtype=torch.bool),
    )
    for seed in range(3):
        data = rows(seed)
        by_rows.merge(Moments.of(data, valid.repeat(2)))
        by_moments.merge(Moments.of(data[:500], valid).merge(Moments.of(data[500:], valid)))
    for expected, given in zip(vars(by_rows.moments()).values(), vars(by_moments.moments()).values(), strict=True):
        torch.testing.assert_close(given, expected, rtol=1e-9, atol=0)


def test_masked_rows_alone_change_nothing():
    statistics = RunningStatistics(3)
    statistics.merge(Moments.of(rows(), torch.zeros(1000, dtype=torch.bool)))
    assert statistics.count == 0 and torch.equal(statistics.variance(), torch.ones(3, dtype=torch.float64))


def test_forgetting_follows_a_change():
    statistics = RunningStatistics(1, keep=0.5)
    everything = torch.ones(100, dtype=torch.bool)
    statistics.merge(Moments.of(torch.zeros(100, 1), everything))
    statistics.merge(Moments.of(torch.full((100, 1), 3.0), everything))
    # weights 50 and 100: mean 2, variance (50 * 4 + 100 * 1) / 150 = 2
    torch.testing.assert_close(statistics.mean, torch.tensor([2.0], dtype=torch.float64))
    torch.testing.assert_close(statistics.variance(), torch.tensor([2.0], dtype=torch.float64))


def test_observations_become_standard_and_are_clipped():
    normalizer = ObservationNormalizer(3, limit=2.0)
    data = rows()
    assert torch.equal(normalizer(torch.ones(2, 3)), torch.ones(2, 3))
    normalizer.update(data, torch.ones(1000, dtype=torch.bool))
    normalizer.limit = 100.0
    out = normalizer(data)
    assert out.mean(0).abs().max() < 1e-3 and (out.std(0) - 1).abs().max() < 1e-2
    normalizer.limit = 2.0
    assert normalizer(data + 1000).max() == 2.0


def test_popart_keeps_values_while_statistics_move():
    layer = Readout(8, 1, 1.0, torch.Generator().manual_seed(0))
    normalizer, features = ReturnNormalizer(), torch.randn(50, 8, generator=torch.Generator().manual_seed(1))
    for scale in (100.0, 0.5, 7.0):
        before = normalizer(layer(features))
        returns = torch.randn(200, generator=torch.Generator().manual_seed(2)) * scale + 3 * scale
        normalizer.update(returns, torch.ones(200, dtype=torch.bool), layer.weight, layer.bias)
        torch.testing.assert_close(normalizer(layer(features)), before, rtol=1e-4, atol=1e-3)
    assert normalizer.scale != 1 and layer.weight.requires_grad


@pytest.mark.parametrize("warm_up", [0, 5])
@pytest.mark.parametrize("shape", [(4,), (3, 1, 4)])
def test_gradients_of_batch_renormalisation_are_those_of_autograd(shape, warm_up):
    draw = torch.Generator().manual_seed(0)
    norm = BatchRenorm(shape, warm_up).double()
    rows = (*shape[:-2], 7, 4)
    features, wanted = (torch.randn(rows, dtype=torch.float64, generator=draw) for _ in range(2))
    weight = torch.rand(7, dtype=torch.float64, generator=draw)
    weight[2] = 0
    weight /= weight.sum()
    with torch.no_grad():
        for buffer, low in ((norm.mean, -0.5), (norm.std, 0.7), (norm.weight, 0.5), (norm.bias, -1)):
            buffer.copy_(low + torch.rand(shape, dtype=torch.float64, generator=draw))
    before = {name: buffer.clone() for name, buffer in norm.named_buffers()}
    ends = []
    for own in (True, False):
        x = features.clone().requires_grad_()
        if own:
            y = norm(x, weight)
        else:  # by the paper's algorithm 1
            mean = (x * weight[:, None]).sum(-2, keepdim=True)
            std = (((x - mean).square() * weight[:, None]).sum(-2, keepdim=True) + norm.eps).sqrt()
            r, d = torch.ones(()), torch.zeros(())
            if warm_up == 0:
                r = (std.detach() / before["std"]).clamp(1 / norm.r_max, norm.r_max)
                d = ((mean.detach() - before["mean"]) / before["std"]).clamp(-norm.d_max, norm.d_max)
            y = ((x - mean) / std * r + d) * norm.weight + norm.bias
        ends.append((y, *torch.autograd.grad((y * wanted).sum(), (x, norm.weight, norm.bias))))
    torch.testing.assert_close(ends[0], ends[1])
    assert norm.batches == 1 and not torch.equal(norm.mean, before["mean"])
