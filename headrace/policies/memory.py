"""Recurrent cores: what a policy remembers between steps. GRU and LSTM, several side by side in one call."""

from __future__ import annotations

import torch
from torch import Tensor, nn

GATES = {"gru": 3, "lstm": 4}
STATES = {"gru": 1, "lstm": 2}  # vectors of the core's size in its memory: the output, and an LSTM's cell


class Core(nn.Module):
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
            raise ValueError(f"memory_size must be 1 or more, got {size}")
        self.kind, self.copies, self.size, self.width = kind, copies, size, STATES[kind] * size
        gates = GATES[kind]

        def orthogonal(rows: int) -> Tensor:
            parts = [nn.init.orthogonal_(torch.empty(rows, size), 1.0, generator) for _ in range(copies * gates)]
            return torch.stack([torch.cat(parts[k * gates : (k + 1) * gates], 1) for k in range(copies)])

        self.weight_input = nn.Parameter(orthogonal(inputs))  # [K, inputs, gates * size]
        self.weight_memory = nn.Parameter(orthogonal(size))  # [K, size, gates * size]
        self.bias_input = nn.Parameter(torch.zeros(copies, 1, gates * size))
        self.bias_memory = nn.Parameter(torch.zeros(copies, 1, gates * size))
        if kind == "lstm":
            with torch.no_grad():
                self.bias_input[..., size : 2 * size] = 1.0

    def forward(self, features: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """One step of N environments: outputs [K, N, size], and the memory after it [N, K * width]."""
        state = self._step(self._project(features), self._stacked(memory))
        return state[..., : self.size], self._side_by_side(state)

    def sequence(self, features: Tensor, memory: Tensor, valid: Tensor) -> Tensor:
        """Outputs [K, T, N, size] of T steps, from features [K, T, N, inputs] and the memory before the first.

        valid: [T, N]; memory begins anew after a row that is not.
        """
        copies, steps, envs = features.shape[:3]
        # what does not depend on memory goes through one product for all steps
        projected = self._project(features.flatten(1, 2)).view(copies, steps, envs, -1)
        keep = valid.to(features.dtype).unsqueeze(-1)
        state, outputs = self._stacked(memory), []
        for now, kept in zip(projected.unbind(1), keep, strict=True):
            state = self._step(now, state)
            outputs.append(state[..., : self.size])
            state = state * kept
        return torch.stack(outputs, 1)

    def _project(self, features: Tensor) -> Tensor:
        return torch.baddbmm(self.bias_input, features, self.weight_input)

    def _step(self, projected: Tensor, state: Tensor) -> Tensor:
        """projected [K, N, gates * size], state [K, N, width] -> the next state."""
        size = self.size
        before = state[..., :size]
        remembered = torch.baddbmm(self.bias_memory, before, self.weight_memory)
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

    def _stacked(self, memory: Tensor) -> Tensor:
        return memory.unflatten(-1, (self.copies, self.width)).movedim(-2, 0)

    def _side_by_side(self, state: Tensor) -> Tensor:
        return state.movedim(0, -2).flatten(-2)
