"""Sequences of rows drawn from a replay buffer, for recurrent policies. Kapturowski et al. 2019 (R2D2), section 2.3.

A sequence begins at a stored recurrent state of the policy that collected it. Its first `burn_in` rows only update that
state with the present weights. The loss covers the rows after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import torch
from torch import Tensor

from headrace.data.pieces import Piece
from headrace.data.replay import Batch, Replay, spread, take
from headrace.data.rollout import Group, Rollout, named_tensors, tree_map


class SequenceReplay(Replay):
    """A Replay that draws `sequence_length` consecutive rows of one environment, with the rows and the state before
    them.

    like, capacity, num_steps: as the Replay's; like has a column `rnn_state`, the recurrent state [N, W] before each
    step. Sequences begin at steps that are multiples of sequence_length, for which alone the recurrent state is stored.
    So each row is learned from equally often. In place of observations batches hold histories, Groups of
        observation [S, M, ...], valid [S, M]: M rows of S sequences, those of the burn-in first;
        rnn_state [S, W]: the recurrent state before the first of them;
        at int64 [S, L]: which of the M rows the transitions are at.
    """

    def __init__(
        self, like: Rollout, capacity: int, num_steps: int = 1, sequence_length: int = 16, burn_in: int = 0
    ) -> None:
        self.sequence_length, self.burn_in = sequence_length, burn_in
        super().__init__(like, capacity, num_steps)
        self.chunks = self.length // sequence_length
        # the last entry is overwritten with the states that are not needed
        kept = (self.chunks + 1, like.num_envs)
        self.rnn_state = tree_map(lambda x: torch.zeros(*kept, *x.shape[2:], device=x.device), like.rnn_state)

    def rounded(self, length: int) -> int:
        return length // self.sequence_length * self.sequence_length

    @property
    def n_step_span(self) -> int:
        return self.burn_in + self.sequence_length - 1 + self.num_steps

    @property
    def least(self) -> int:
        return self.n_step_span + self.sequence_length

    def _write(self, rollout: Rollout, env: Tensor, begin: Tensor) -> None:
        times = begin + torch.arange(rollout.num_steps, device=begin.device).unsqueeze(1)
        begins = times % self.sequence_length == 0
        chunks = torch.where(begins, times // self.sequence_length % self.chunks, self.chunks)
        places = (chunks * self.num_envs + env).flatten()
        tree_map(
            lambda kept, column: kept.flatten(0, 1).index_copy_(0, places, column.flatten(0, 1)),
            self.rnn_state,
            rollout.rnn_state,
        )
        super()._write(rollout, env, begin)

    def draw(self, random: Tensor) -> Tensor:
        """Draw rows of minibatches, int64 [..., B], by uniform draws [..., B, DRAWS]. Only a few of these are used.

        Whole sequences are drawn uniformly from those whose last row's n-step successor has been written. Masked rows
        within them have weight 0. Raises ValueError where sequence_length does not divide B.
        """
        length = self.sequence_length
        if random.shape[-2] % length:
            raise ValueError(f"{random.shape[-2]} rows are not whole sequences of {length}")
        random = random[..., : random.shape[-2] // length, :]
        end = (self.written - self.n_step_span) // length + 1  # one after the last that may be drawn
        oldest = ((self.written - self.length).clamp(min=-1) + length) // length
        counts = (end - oldest).clamp(min=0)
        fine = random[..., 0].double() + random[..., 1].double() * 2.0**-24  # see Replay.draw
        step, env = spread((fine * counts.sum()).long(), counts)
        first = (oldest[env] + step) * length + self.burn_in
        times = first.unsqueeze(-1) + torch.arange(length, device=random.device)
        return (times % self.length * self.num_envs + env.unsqueeze(-1)).flatten(-2)

    def gather(self, rows: Tensor, gamma: float) -> Batch:
        """The transitions that begin at `rows` [..., B] of draw(), with histories in place of observations."""
        length, burn_in = self.sequence_length, self.burn_in
        size, device = self.length * self.num_envs, rows.device
        reward, discount, steps = self._ahead(rows, gamma)
        begin = (rows.unflatten(-1, (-1, length))[..., 0] - burn_in * self.num_envs) % size
        whole = torch.arange(self.n_step_span + 1, device=device) * self.num_envs
        seen = (begin.unsqueeze(-1) + whole) % size
        observation, valid = take(self.ring.observation, seen), take(self.ring.valid, seen)
        chunk, env = begin // self.num_envs // length, begin % self.num_envs
        rnn_state = tree_map(lambda kept: kept[chunk, env], self.rnn_state)
        at = (burn_in + torch.arange(length, device=device)).expand(*begin.shape, length)
        until = burn_in + length

        def history(rows: int, at: Tensor) -> Group:
            part = {"observation": tree_map(lambda x: x.narrow(begin.dim(), 0, rows), observation)}
            return Group(part | {"valid": valid[..., :rows], "rnn_state": rnn_state, "at": at})

        now, later = history(until, at), history(self.n_step_span + 1, at + steps.unflatten(-1, (-1, length)))
        weight = take(self.ring.valid, rows).float()
        return Batch(now, take(self.ring.action, rows), reward, discount, later, weight, rows)

    @property
    def row_bytes(self) -> int:
        states = (x.element_size() * prod(x.shape[2:]) for _, x in self._states())
        return super().row_bytes + sum(states) // self.sequence_length

    def read_rows(self, start: Tensor, stop: Tensor) -> Piece:
        """The Replay's piece, and the recurrent states of rows at which sequences begin."""
        chunks = self._chunks(start, stop)
        return super().read_rows(start, stop) | {name: kept[chunks] for name, kept in self._states()}

    def write_rows(self, piece: Mapping[str, Tensor]) -> None:
        super().write_rows(piece)
        device = self.ring.device
        chunks = self._chunks(piece["start"].to(device), piece["stop"].to(device))
        for name, kept in self._states():
            kept[chunks] = piece[name].to(device)

    def _chunks(self, start: Tensor, stop: Tensor) -> tuple[Tensor, Tensor]:
        """Positions of the recurrent states of sequences that begin in a piece: an index into [chunks, N]."""
        times, env = self._rows(start, stop)
        begins = times % self.sequence_length == 0
        return times[begins] // self.sequence_length % self.chunks, env[begins]

    def _states(self) -> Iterator[tuple[str, Tensor]]:
        return named_tensors({"rnn_state": self.rnn_state})
