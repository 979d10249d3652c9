"""Minibatches: every row once, all of one shape, in either layout."""

import pytest
import torch

from headrace.data.minibatches import count, minibatches
from headrace.data.rollout import Group


@pytest.mark.parametrize(("rows", "size", "number"), [(100, 25, 4), (100, 30, 3), (100, 1000, 1), (10, 1, 10)])
def test_the_number_is_the_nearest_to_the_size_asked(rows, size, number):
    assert count(rows, size) == number


def test_rows_of_all_columns_stay_together():
    number = torch.arange(20)
    columns = {
        "number": number,
        "row_major": torch.stack((number, number * 2), 1),
        "feature_major": torch.stack((number, number * 3)).t(),
        "group": Group({"image": number.view(-1, 1, 1).expand(20, 2, 2)}),
    }
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    batches = list(minibatches(columns, order, 3))
    assert torch.cat([batch["number"] for batch in batches]).tolist() == order[:18].tolist()
    for batch in batches:
        n = batch["number"]
        assert torch.equal(batch["row_major"], torch.stack((n, n * 2), 1))
        assert torch.equal(batch["feature_major"], torch.stack((n, n * 3), 1)) and batch["feature_major"].stride(0) == 1
        assert torch.equal(batch["group"].image, n.view(-1, 1, 1).expand(6, 2, 2))
