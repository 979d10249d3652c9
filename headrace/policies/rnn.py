"""Recurrent cores: what a policy remembers between steps. GRU and LSTM, several side by side in one call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headrace.core.fused import fused
from headrace.data.rollout import flatten

GATES = {"gru": 3, "lstm": 4}
STATES = {"gru": 1, "lstm": 2}  # vectors of the core's size in its memory: the output, and an LSTM's cell


class RNNCell(nn.Module):
    """K cores of one kind and size side by side, each with weights of its own: [K, N, inputs] -> [K, N, size].

    kind: "gru" (Cho et al. 2014, arXiv:1406.1078) or "lstm" (Hochreiter & Schmidhuber 1997; forget gates begin open,
    Gers et al. 2000). Weights are orthogonal, those from memory gate by gate. Memory is [N, K * width].
    Raises ValueError for another kind, or a size below 1.
    """

    def __init__(self, kind: str, copies: int, inputs: int, size: int, generator: torch.Generator) -> None:
        super().__init__()
        if kind not in GATES:
            raise ValueError(f"unknown memory {kind!r}: use one of {', '.join(GATES)}")
        if size < 1:
            raise ValueError(f"rnn_size must be 1 or more, got {size}")
        self.kind, self.copies, self.size, self.width = kind, copies, size, STATES[kind] * size
        gates = GATES[kind]

        def orthogonal(rows: int) -> Tensor:
            parts = [nn.init.orthogonal_(torch.empty(rows, size), 1.0, generator) for _ in range(copies * gates)]
            return torch.stack([torch.cat(parts[k * gates : (k + 1) * gates], 1) for k in range(copies)])

        self.weight_input = nn.Parameter(orthogonal(inputs))  # [K, inputs, gates * size]
        self.weight_hidden = nn.Parameter(orthogonal(size))  # [K, size, gates * size]
        self.bias_input = nn.Parameter(torch.zeros(copies, 1, gates * size))
        self.bias_hidden = nn.Parameter(torch.zeros(copies, 1, gates * size))
        if kind == "lstm":
            with torch.no_grad():
                self.bias_input[..., size : 2 * size] = 1.0

    def forward(self, features: Tensor, rnn_state: Tensor) -> tuple[Tensor, Tensor]:
        """One step of N environments: outputs [K, N, size], and the memory after it [N, K * width]."""
        state = self._step(self._project(features), self._stacked(rnn_state))
        return state[..., : self.size], self._side_by_side(state)

    def sequence(self, features: Tensor, rnn_state: Tensor, valid: Tensor, burn_in: int = 0) -> Tensor:
        """Outputs [K, T, N, size] of T steps, from features [K, T, N, inputs] and the memory before the first.

        valid: [T, N]; memory begins anew after a row that is not. burn_in: steps into which gradients do not go back.
        """
        copies, steps, envs = features.shape[:3]
        # what does not depend on memory goes through one product for all steps
        projected = self._project(features.flatten(1, 2)).view(copies, steps, envs, -1)
        return self.recur(projected, rnn_state, valid, burn_in)

    @fused("rnn.recur", "headrace.bindings.rnn_cpu")
    def recur(self, projected: Tensor, rnn_state: Tensor, valid: Tensor, burn_in: int) -> Tensor:
        """sequence(), from what features say to the gates, [K, T, N, gates * size]."""
        keep = valid.to(projected.dtype).unsqueeze(-1)
        state, outputs = self._stacked(rnn_state), []
        for step, (now, kept) in enumerate(zip(projected.unbind(1), keep, strict=True)):
            state = self._step(now, state if step != burn_in else state.detach())
            outputs.append(state[..., : self.size])
            state = state * kept
        return torch.stack(outputs, 1)

    def _project(self, features: Tensor) -> Tensor:
        return torch.baddbmm(self.bias_input, features, self.weight_input)

    def _step(self, projected: Tensor, state: Tensor) -> Tensor:
        """projected [K, N, gates * size], state [K, N, width] -> the next state."""
        size = self.size
        before = state[..., :size]
        remembered = torch.baddbmm(self.bias_hidden, before, self.weight_hidden)
        if self.kind == "gru":
            opened = torch.sigmoid(projected[..., : 2 * size] + remembered[..., : 2 * size])
            reset, keep = opened.split(size, -1)
            fresh = torch.tanh(torch.addcmul(projected[..., 2 * size :], reset, remembered[..., 2 * size :]))
            return torch.lerp(fresh, before, keep)
        gates = projected + remembered
        enter, keep = torch.sigmoid(gates[..., : 2 * size]).split(size, -1)
        cell = keep * state[..., size:] + enter * torch.tanh(gates[..., 2 * size : 3 * size])
        output = torch.sigmoid(gates[..., 3 * size :]) * torch.tanh(cell)
        return torch.cat((output, cell), -1)

    def _stacked(self, rnn_state: Tensor) -> Tensor:
        return rnn_state.unflatten(-1, (self.copies, self.width)).movedim(-2, 0)

    def _side_by_side(self, state: Tensor) -> Tensor:
        return state.movedim(0, -2).flatten(-2)


class RecurrentEncoder(nn.Module):
    """An encoder of observations, and a core that remembers them: features are what both put out, side by side.

    So what is seen now need not pass through memory (the shortcut of Ni, Eysenbach & Salakhutdinov 2022,
    arXiv:2110.05038). burn_in: of the histories it will be given, the rows into which gradients do not go back.
    """

    def __init__(self, encoder: Any, kind: str, size: int, burn_in: int, generator: torch.Generator) -> None:
        super().__init__()
        self.encoder, self.burn_in = encoder, burn_in
        self.rnn = RNNCell(kind, 1, encoder.size, size, generator)
        self.size, self.width = encoder.size + size, self.rnn.width

    def forward(self, history: Any) -> Tensor:
        """Features [S * L, size] of the L rows that are meant in each of S histories; see headrace.data.sequences."""
        valid, at = history.valid, history.at
        encoded = self.encoder(flatten(history.observation)).unflatten(0, valid.shape)
        rnn_state = history.rnn_state[:, : self.width]
        outputs = self.rnn.sequence(encoded.transpose(0, 1).unsqueeze(0), rnn_state, valid.t(), self.burn_in)
        features = torch.cat((encoded, outputs[0].transpose(0, 1)), 2)
        return features.take_along_dim(at.unsqueeze(2), 1).flatten(0, 1)

    def step(self, observation: Any, rnn_state: Tensor) -> tuple[Tensor, Tensor]:
        """Features [N, size] of N observations, and the memory [N, width] after them. memory: [N, width or more]."""
        encoded = self.encoder(observation)
        outputs, rnn_state = self.rnn(encoded.unsqueeze(0), rnn_state[:, : self.width])
        return torch.cat((encoded, outputs[0]), 1), rnn_state

    def update_statistics(self, observation: Any, valid: Tensor) -> None:
        """Move the normalisers by the valid ones of R observations."""
        self.encoder.update_statistics(observation, valid)


def with_memory(encoder: Any, recurrent: str, size: int, burn_in: int, generator: torch.Generator) -> Any:
    """The encoder, made to remember by a core of this kind and size; as it is for "none".

    Raises ValueError for another kind, or a number out of range.
    """
    if burn_in < 0:
        raise ValueError(f"burn_in must be 0 or more, got {burn_in}")
    return encoder if recurrent == "none" else RecurrentEncoder(encoder, recurrent, size, burn_in, generator)


def width(encoder: Any) -> int:
    """Numbers that an encoder remembers of each environment; 0 for one without memory."""
    return encoder.width if isinstance(encoder, RecurrentEncoder) else 0


def step(encoder: Any, observation: Any, rnn_state: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Features [N, F] of N observations by any encoder, and what it remembers after them; None for one without."""
    return encoder.step(observation, rnn_state) if width(encoder) else (encoder(observation), None)
