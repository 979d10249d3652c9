"""normalized(): advantages of mean 0 and variance 1 over the valid rows of all learners."""

import pytest
import torch

from headrace.algorithms.reduce import normalized, one_learner

ROWS = 300


def all_valid():
    return torch.ones(ROWS, dtype=torch.bool)


@pytest.mark.parametrize("number", [0.1, 1 / 3, 7.7, 123.456, 1e6 / 3, 1e20])
def test_equal_advantages_are_0(number):
    found = normalized(torch.full((ROWS,), number), all_valid())
    assert found.dtype == torch.float32 and (found == 0).all()


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (-3.0, 1e-5), (1e3, 1e-3), (1e4, 1e-2), (1e6, 1.0)])
def test_mean_and_variance_are_those_of_float64(mean, deviation):
    x = mean + deviation * torch.randn(ROWS, generator=torch.Generator().manual_seed(0))
    valid = all_valid()
    valid[::7] = False
    wide = x.double()
    kept = wide[valid]
    expected = (wide - kept.mean()) / (kept.std(correction=0) + 1e-8)
    torch.testing.assert_close(normalized(x, valid), expected.float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("anything", [torch.inf, -torch.inf, torch.nan])
def test_rows_that_are_not_valid_count_nothing_whatever_they_are(anything):
    x, valid = torch.randn(ROWS, generator=torch.Generator().manual_seed(1)), all_valid()
    valid[5] = False
    expected = normalized(x, valid)
    x[5] = anything
    assert torch.equal(normalized(x, valid)[valid], expected[valid])


def test_without_valid_rows_nothing_is_divided_by_0():
    assert normalized(torch.linspace(-2, 5, ROWS), ~all_valid()).isfinite().all()


def test_moments_are_those_of_all_learners():
    """Each of two learners is given the other's sums."""
    x = 50 + torch.randn(2, ROWS, generator=torch.Generator().manual_seed(2))
    valid = torch.rand(2, ROWS, generator=torch.Generator().manual_seed(3)) > 0.3
    expected = normalized(x.flatten(), valid.flatten()).view(2, ROWS)
    whole = [valid.sum(), x.double()[valid].sum()]
    whole.append((x.double()[valid] - whole[1] / whole[0]).square().sum())
    for own in range(2):
        totals = iter(whole)

        def reduce(*tensors, totals=totals):
            for tensor in tensors:
                tensor.copy_(next(totals))

        torch.testing.assert_close(normalized(x[own], valid[own], reduce), expected[own], rtol=1e-6, atol=1e-6)
    assert torch.equal(normalized(x[0], valid[0], one_learner), normalized(x[0], valid[0]))
