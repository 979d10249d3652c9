"""hr.compile(): reading and writing at indices and where masks hold, largest numbers over rows; against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headrace as hr
from tests.bindings.losses import mlp
from tests.bindings.oracle import as_in_float64

Batch = dict[str, Tensor]


def batch(rows: int) -> Batch:
    generator = torch.Generator().manual_seed(rows)
    found = {"x": torch.randn(rows, 6, generator=generator), "y": torch.randn(rows, generator=generator)}
    found |= {"z": torch.randn(rows, 4, 5, generator=generator), "w": torch.rand(rows, 3, generator=generator)}
    found |= {name: torch.rand(rows, *shape, generator=generator) < 0.5 for name, shape in MASKS.items()}
    return found | {
        name: torch.randint(high, (rows, *shape), generator=generator) for name, (high, *shape) in INTEGERS.items()
    }


MASKS: dict[str, tuple[int, ...]] = {"some": (), "each": (6,), "steps": (4,)}
INTEGERS = {"of4": (4,), "of6": (6,), "three": (6, 3), "four": (5, 4)}


def masks_write(net: nn.Module, b: Batch) -> Tensor:
    q, wide = net(b["x"]), net(b["x"]).view(-1, 4, 6)[:, 0].clone()
    wide[b["each"]] = 0.5
    rows = q.clone()
    rows[b["some"]] = 0.0
    rows[~b["some"], 2] = 3.0
    target = b["y"].clone()
    target[b["some"]] = -1.0
    filled = q.masked_fill(b["some"][:, None], 2.0)
    return wide.square().mean() + rows.square().mean() + (q[:, 0] - target).square().mean() + filled.square().mean()


def masks_choose(net: nn.Module, b: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    q = net(b["x"]).view(-1, 4, 6)
    one, two = q[:, 0, 0], q[..., 1]
    loss = (one[b["some"]] - b["y"][b["some"]]).square().mean() + two[b["steps"]].exp().sum() / b["steps"].sum()
    loss = loss + q[b["some"]].log_softmax(-1)[:, 1, 2].mean() + F.mse_loss(one[b["some"]] * 2, b["x"][b["some"], 3])
    spread = one[b["some"]]
    return loss, {"std": spread.std(), "count": b["some"].sum(), "share": (spread > 0).float().mean()}


def masks_change(net: nn.Module, b: Batch) -> Tensor:
    q = net(b["x"])[:, :6].clone()
    q[b["each"]] += 0.5
    other = net(b["x"])[:, 6:12].clone()
    other[b["each"]] = q[b["each"]] * b["x"][b["each"]]
    other[b["some"]] *= 0.5
    return q.square().mean() + other.square().mean()


def networks_of_chosen_rows(net: nn.Module, b: Batch) -> Tensor:
    x = b["x"][b["some"]]
    return (net(x)[:, 0] - b["y"][b["some"]]).square().sum() / (x.shape[0] + 1)


def reads_at_indices(net: nn.Module, b: Batch) -> Tensor:
    flat, q = net(b["x"])[:, :6], net(b["x"])[:, :20].reshape(-1, 4, 5)
    row = torch.arange(len(q))
    found = [flat[row, b["of6"]], flat[range(len(q)), b["of6"]], flat[row[:, None], b["three"]]]
    found += [q[row, b["of4"]], q[row, :, b["of4"]], q[row[:, None], torch.arange(4), b["four"]]]
    found += [q[row, b["of4"], b["four"][:, 0]], q[:, [2, 0], [1, 1]], flat[:, [0, 2, -1]], flat[row, b["of6"] - 6]]
    found += [q.gather(1, b["of4"].view(-1, 1, 1).expand(-1, 1, 5)), q.gather(2, b["four"][:, :2, None])]
    found += [torch.take_along_dim(q, b["of4"][:, None, None], dim=1)]
    return torch.stack([x.square().mean() for x in found]).sum()


def writes_at_indices(net: nn.Module, b: Batch) -> Tensor:
    flat, q = net(b["x"])[:, :6], net(b["x"])[:, :20].reshape(-1, 4, 5)
    row = torch.arange(len(q))
    one, three, some = flat.clone(), q.clone(), flat.clone()
    one[row, b["of6"]] = b["y"]
    three[row, b["of4"]] = b["z"][:, 0]
    some[:, [0, 5, 2]] = flat[:, 1:4] * b["w"]
    hot = flat.new_zeros(len(flat), 6)
    hot[row, b["of6"]] = 1.0
    several = torch.zeros_like(flat).scatter_(1, b["three"], 1.0)
    placed = b["x"].scatter(1, b["three"][:, :1], flat[:, :1]) + b["x"].scatter_add(1, b["three"], flat[:, :3])
    made = [one, three, some, hot * flat, several * flat, placed]
    return torch.stack([x.square().mean() for x in made]).sum()


def flat_indices(net: nn.Module, b: Batch) -> Tensor:
    q = net(b["x"])[:, :6].log_softmax(1)
    rows = len(q)
    target = q.new_zeros(rows, 6)
    offset = torch.linspace(0, (rows - 1) * 6, rows).long().unsqueeze(1).expand(rows, 3)
    target.view(-1).index_add_(0, (b["three"] + offset).view(-1), b["w"].view(-1))
    other = (torch.arange(rows) * 6)[:, None]
    target.view(-1).index_add_(0, (5 - b["three"] + other).view(-1), b["w"].view(-1))
    third = torch.arange(0, rows * 6, 6).unsqueeze(1) + (b["three"] + 1) % 6
    target.view(-1).index_add_(0, third.view(-1), 0.5 * b["w"].view(-1))
    return -(target * q).sum(1).mean()


def matrices(net: nn.Module, b: Batch) -> Tensor:
    entries = net(b["x"])[:, :21]
    lower = entries.new_zeros(len(entries), 6, 6)
    i = torch.tril_indices(6, 6)
    lower[:, i[0], i[1]] = entries
    spread = torch.diagonal(lower, dim1=1, dim2=2).exp() + torch.diag_embed(entries[:, :6]).sum(1)
    return (lower @ b["x"].unsqueeze(2)).square().mean() + spread.mean()


def in_order(net: nn.Module, b: Batch) -> Tensor:
    q = net(b["x"])[:, :6]
    largest, places = q.topk(3, dim=1)
    smallest = q.topk(2, dim=-1, largest=False).values
    ranked = q.sort(-1, descending=True).values * torch.arange(6)
    found = [largest, smallest, ranked, q.kthvalue(2, dim=1).values, q.median(1).values]
    if (
        torch.__version__ >= "2.12" and torch.__version__ < "2.14"
    ):  # others look into a tensor, or take places in float64
        found.append(torch.quantile(q, 0.3, dim=1))
    return torch.stack([x.square().mean() for x in found]).sum() + (q * b["x"].gather(1, places).sum(1, True)).mean()


def largest_over_rows(net: nn.Module, b: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    q = net(b["x"])[:, :6]
    y = (b["y"] - b["y"].min()) / (b["y"].max() - b["y"].min())
    loss = (q[:, 0] - y).square().mean() + q.max() - 0.1 * q[:, 1].min() + (q / (q.detach().abs().max() + 1)).mean()
    metrics = {"columns": q.amax(0), "any": b["some"].any(), "all": (b["some"] | ~b["some"]).all(), "std": q.std()}
    metrics |= {"each": b["each"].all(0), "count": b["of6"].max(), "first": q.max(0)[0], "explained": 1 - q.var()}
    return loss, metrics


def products_with_numbers(net: nn.Module, b: Batch) -> Tensor:
    """Matrices, and a bias, that the text of the loss contains."""
    q = net(b["x"])[:, :6]
    ones, ramp = torch.ones(6, 2, dtype=q.dtype), torch.arange(18, dtype=q.dtype).view(6, 3)
    found = [
        q @ ones,
        torch.addmm(torch.tensor([1.0, 2.0, 3.0], dtype=q.dtype), q, ramp),
    ]
    return torch.stack([x.square().mean() for x in found]).sum()


LOSSES = (
    products_with_numbers,
    *(masks_write, masks_choose, masks_change, networks_of_chosen_rows, reads_at_indices, writes_at_indices),
    *(flat_indices, matrices, in_order, largest_over_rows),
)


@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_and_metrics_are_those_of_float64(loss: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = mlp(6, 16, 24)
    as_in_float64(loss, net, [batch(rows) for rows in (64, 3, 63, 65, 200)], monkeypatch)


# refusals


def places_in_other_rows(net: nn.Module, b: Batch) -> Tensor:
    return net(b["x"])[b["of6"]].mean()  # places_in_other_rows


def writes_to_other_rows(net: nn.Module, b: Batch) -> Tensor:
    q = net(b["x"]).clone()
    q[b["of6"]] = 1.0  # writes_to_other_rows
    return q.mean()


def counts_rows(net: nn.Module, b: Batch) -> Tensor:
    return (net(b["x"])[:, 0] * torch.arange(len(b["x"]))).mean()  # counts_rows


def largest_of_chosen(net: nn.Module, b: Batch) -> Tensor:
    return net(b["x"])[:, 0][b["some"]].max()  # largest_of_chosen


def chosen_by_two(net: nn.Module, b: Batch) -> Tensor:
    return net(b["x"][b["some"]])[b["x"][b["some"], 0] > 0].mean()  # chosen_by_two


def returns_chosen(net: nn.Module, b: Batch) -> tuple[Tensor, Tensor]:
    q = net(b["x"])[:, 0]
    return q.mean(), q[b["some"]]


def takes_first_of_chosen(net: nn.Module, b: Batch) -> Tensor:
    return net(b["x"])[b["some"]][:4].mean()  # takes_first_of_chosen


REFUSED = {
    places_in_other_rows: "takes rows by their index",
    writes_to_other_rows: "rows",
    counts_rows: "positions of rows",
    largest_of_chosen: "max of what truth values choose",
    chosen_by_two: "truth values",
    returns_chosen: "size depends on the data",
    takes_first_of_chosen: "takes some of the rows",
}


@pytest.mark.parametrize("loss", REFUSED)
def test_rows_do_not_meet(loss: Callable[..., Any]) -> None:
    reason = str(hr.compile(loss).why_not(mlp(6, 16, 24), batch(20)))
    assert REFUSED[loss] in reason, reason
    assert reason.startswith("test_losses_with_indices.py:"), reason


def test_an_index_that_would_reach_another_row_gives_nan() -> None:
    net, b = mlp(6, 16, 24), batch(40)
    step = hr.compile(flat_indices)
    assert step.why_not(net, b) is None
    b["three"][3, 1] = 7
    assert step(net, b).isnan()
