"""hr.compile() of torch's recurrent layers: several layers, given states, states that end with their episodes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.bindings.oracle import as_in_float64

STEPS = 3


class Net(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **settings: Any) -> None:
        super().__init__()
        self.memory, self.out = kind(4, 8, **settings), nn.Linear(8, 2)


def batch(rows: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    found = {"x": torch.randn(rows, STEPS, 4, generator=generator), "h": torch.randn(rows, 8, generator=generator)}
    return found | {"done": torch.rand(rows, STEPS, generator=generator) < 0.3}


def whole(net: Net, b: dict[str, Tensor]) -> Tensor:
    found, _ = net.memory(b["x"])
    return net.out(found).square().mean()  # type: ignore[no-any-return]


def last_states(net: Net, b: dict[str, Tensor]) -> Tensor:
    """Time first, and the states of each layer."""
    _, states = net.memory(b["x"].transpose(0, 1))
    return torch.stack([s.square().mean() for s in (states if isinstance(states, tuple) else (states,))]).sum()


def ending(net: Net, b: dict[str, Tensor]) -> Tensor:
    """Loss that goes from a given state step by step. States are 0 after the end of an episode."""
    state: Any = b["h"][None]
    state = (state, 0.5 * state) if isinstance(net.memory, nn.LSTM) else state
    found = []
    for t in range(STEPS):
        keep = 1 - b["done"][:, t].to(b["x"].dtype).view(1, -1, 1)
        state = torch.utils._pytree.tree_map(lambda s, keep=keep: keep * s, state)
        y, state = net.memory(b["x"][None, :, t], state)
        found.append(y)
    return net.out(torch.flatten(torch.cat(found), 0, 1)).square().mean()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("loss", "kind", "settings"),
    [
        (whole, nn.LSTM, {"batch_first": True, "num_layers": 2}),
        (whole, nn.RNN, {"batch_first": True, "nonlinearity": "relu"}),
        (last_states, nn.GRU, {"num_layers": 2}),
        (last_states, nn.LSTM, {"bias": False}),
        (ending, nn.LSTM, {}),
        (ending, nn.GRU, {}),
    ],
)
def test_gradients_are_those_of_float64(
    loss: Any, kind: type[nn.RNNBase], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    as_in_float64(loss, Net(kind, **settings), [batch(rows) for rows in (64, 3, 65, 150)], monkeypatch)
