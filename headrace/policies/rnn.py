"""GRU and LSTM cells of recurrent policies: several cells in one batched call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headrace.core.fused import fused
from headrace.data.rollout import flatten
from headrace.policies.normalization import update_encoder
from headrace.policies.unknown_members import explains_members

GATES = {"gru": 3, "lstm": 4}
STATES = {"gru": 1, "lstm": 2}  # vectors in the recurrent state: the output, and an LSTM's cell state


class RNNCell(nn.Module):
    """K cells of one kind and size, each with its own weights: [K, N, inputs] -> [K, N, size].

    kind: "gru" (Cho et al. 2014, arXiv:1406.1078) or "lstm" (Hochreiter & Schmidhuber 1997; forget biases are 1 at
    first, Gers et al. 2000). Weights are orthogonal, gate by gate. The recurrent state is [N, K * width].
    Raises ValueError for an unknown kind, or a size below 1.
    """

    def __init__(self, kind: str, copies: int, inputs: int, size: int, generator: torch.Generator) -> None:
        super().__init__()
        if kind not in GATES:
            raise ValueError(f"unknown RNN cell {kind!r}: use one of {', '.join(GATES)}")
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
        """One step of N environments: outputs [K, N, size], and the next recurrent state [N, K * width]."""
        state = self._step(self._project(features), self._stacked(rnn_state))
        return state[..., : self.size], self._unstacked(state)

    @fused("rnn.sequence", "headrace.bindings.compiled.compiled_rnn")
    def sequence(self, features: Tensor, rnn_state: Tensor, valid: Tensor, burn_in: int = 0) -> Tensor:
        """Outputs [K, T, N, size] of T steps, from features [K, T, N, inputs] and the initial recurrent state.

        valid: [T, N]; the state is reset after a row that is not valid. burn_in: leading steps without gradients of the
        state.
        """
        copies, steps, envs = features.shape[:3]
        # the part that does not depend on the recurrent state is one product for all steps
        projected = self._project(features.flatten(1, 2)).view(copies, steps, envs, -1)
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
        recurrent = torch.baddbmm(self.bias_hidden, before, self.weight_hidden)
        if self.kind == "gru":
            opened = torch.sigmoid(projected[..., : 2 * size] + recurrent[..., : 2 * size])
            reset, keep = opened.split(size, -1)
            fresh = torch.tanh(torch.addcmul(projected[..., 2 * size :], reset, recurrent[..., 2 * size :]))
            return torch.lerp(fresh, before, keep)
        gates = projected + recurrent
        enter, keep = torch.sigmoid(gates[..., : 2 * size]).split(size, -1)
        cell = keep * state[..., size:] + enter * torch.tanh(gates[..., 2 * size : 3 * size])
        output = torch.sigmoid(gates[..., 3 * size :]) * torch.tanh(cell)
        return torch.cat((output, cell), -1)

    def _stacked(self, rnn_state: Tensor) -> Tensor:
        return rnn_state.unflatten(-1, (self.copies, self.width)).movedim(-2, 0)

    def _unstacked(self, state: Tensor) -> Tensor:
        return state.movedim(0, -2).flatten(-2)


@explains_members
class RecurrentEncoder(nn.Module):
    """An encoder and an RNN cell on its features; the output is the features and the cell's output, concatenated.

    The current features skip the cell, as in Ni, Eysenbach & Salakhutdinov 2022, arXiv:2110.05038. burn_in: leading
    rows of each history without gradients of the recurrent state.
    """

    def __init__(self, encoder: Any, kind: str, size: int, burn_in: int, generator: torch.Generator) -> None:
        super().__init__()
        self.encoder, self.burn_in = encoder, burn_in
        self.rnn = RNNCell(kind, 1, encoder.size, size, generator)
        self.size, self.width = encoder.size + size, self.rnn.width

    def forward(self, history: Any) -> Tensor:
        """Features [S * L, size] of the L rows `at` of each of S histories; see headrace.data.sequences."""
        valid, at = history.valid, history.at
        encoded = self.encoder(flatten(history.observation)).unflatten(0, valid.shape)
        rnn_state = history.rnn_state[:, : self.width]
        outputs = self.rnn.sequence(encoded.transpose(0, 1).unsqueeze(0), rnn_state, valid.t(), self.burn_in)
        features = torch.cat((encoded, outputs[0].transpose(0, 1)), 2)
        return features.take_along_dim(at.unsqueeze(2), 1).flatten(0, 1)

    def step(self, observation: Any, rnn_state: Tensor) -> tuple[Tensor, Tensor]:
        """Features [N, size] of N observations, and the next state [N, width]. rnn_state: [N, width or more]."""
        encoded = self.encoder(observation)
        outputs, rnn_state = self.rnn(encoded.unsqueeze(0), rnn_state[:, : self.width])
        return torch.cat((encoded, outputs[0]), 1), rnn_state

    def update_statistics(self, observation: Any, valid: Tensor) -> None:
        """Update the normalisers with the valid ones of R observations."""
        update_encoder(self.encoder, observation, valid)


def make_recurrent(encoder: Any, recurrent: str, size: int, burn_in: int, generator: torch.Generator) -> Any:
    """The encoder, with an RNN cell of this kind and size; unchanged for "none".

    Raises ValueError for an unknown kind, or a number out of range.
    """
    if burn_in < 0:
        raise ValueError(f"burn_in must be 0 or more, got {burn_in}")
    return encoder if recurrent == "none" else RecurrentEncoder(encoder, recurrent, size, burn_in, generator)


def width(encoder: Any) -> int:
    """Width of an encoder's recurrent state; 0 for one that is not recurrent."""
    return encoder.width if isinstance(encoder, RecurrentEncoder) else 0


def step(encoder: Any, observation: Any, rnn_state: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Features [N, F] of N observations by any encoder, and the next recurrent state, if it is recurrent."""
    return encoder.step(observation, rnn_state) if width(encoder) else (encoder(observation), None)
