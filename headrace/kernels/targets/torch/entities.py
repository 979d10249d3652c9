"""Phases on batched tensors: one more axis, [E, N], the entities of all environments at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import TypeAlias

import torch
from torch import Tensor

from headrace.core.rng import Purpose
from headrace.kernels.language.ir import ENTITY_BITS, PHASE_BITS, EnvIR, Over, Phase
from headrace.kernels.targets.random_actions import no_action
from headrace.kernels.targets.torch.cells import Cells
from headrace.kernels.targets.torch.ops_torch import Key, Namespace, Number, Word

Action: TypeAlias = Tensor | tuple[Tensor, ...]


class Entities:
    """Runs the phases of one EnvIR. functions: its lowered functions by name, on tensors."""

    def __init__(self, ir: EnvIR, functions: Mapping[str, FunctionType], num_envs: int, device: torch.device) -> None:
        self.ir, self.functions, self.num_envs = ir, functions, num_envs
        self.numbers = torch.arange(ir.entities, dtype=torch.int32, device=device).view(-1, 1)
        self.agents = self.numbers[: ir.num_agents]

    def run(
        self,
        phases: Sequence[Phase],
        state: tuple[Tensor | Cells, ...],
        params: tuple[Number, ...],
        purpose: Purpose,
        counters: tuple[int, Tensor, Word, Word],
        action: Action | None = None,
    ) -> None:
        """Each phase for all entities. counters: seed, environments, episode, step, as in a key. action: [E, N] or a
        tuple of these; where entities are no agents [N]."""
        seed, *rest = counters
        for number, phase in enumerate(phases):
            word = (self.numbers.long() << ENTITY_BITS) + (purpose | (number + 1) << PHASE_BITS)
            known = {"action": action, "key": Key((seed, word, *rest))}
            given = [known[what] for what in phase.takes]
            self.functions[phase.name](state, params, self.numbers, *given, *self.reduced(phase.over, state))

    def reduced(self, over: Sequence[Over], state: tuple[Tensor | Cells, ...]) -> list[Tensor]:
        """Reductions of fields of the state, each [N]."""
        return [REDUCTIONS[one.op](state[one.field]) for one in over]  # type: ignore[operator, misc]

    def actions(self, actions: Sequence[Action]) -> Action:
        """The agents' actions, a tensor [N] or a tuple of them for each, as those of all entities."""
        none = no_action(self.ir.action_space).reshape(-1).tolist()
        if self.ir.action_size is None:
            return self._of_all(torch.stack(list(actions)), none[0])  # type: ignore[arg-type]
        entries = [torch.stack(entry) for entry in zip(*actions, strict=True)]
        return tuple(self._of_all(entry, value) for entry, value in zip(entries, none, strict=True))

    def _of_all(self, entry: Tensor, value: float) -> Tensor:
        rest = self.ir.entities - self.ir.num_agents
        return torch.cat([entry, entry.new_full((rest, self.num_envs), value)])


def _sum(field: Cells) -> Tensor:
    return _wide(field).sum(0, dtype=_wide(field).dtype)


def _wide(field: Cells) -> Tensor:
    return field.tensor if field.tensor.is_floating_point() else field.tensor.int()


def _smallest(field: Cells) -> Tensor:
    return _without_nan(field, torch.inf).amin(0)


def _largest(field: Cells) -> Tensor:
    return _without_nan(field, -torch.inf).amax(0)


def _without_nan(field: Cells, value: float) -> Tensor:
    wide = _wide(field)
    return wide.nan_to_num(nan=value, posinf=torch.inf, neginf=-torch.inf) if wide.is_floating_point() else wide


def _first(field: Cells, wanted: Tensor) -> Tensor:
    return (_wide(field) == wanted).int().argmax(0).int()


REDUCTIONS: Namespace = {}
for _kind in ("f32", "i32"):
    REDUCTIONS |= {
        f"sum_over_{_kind}": _sum,
        f"min_over_{_kind}": _smallest,
        f"max_over_{_kind}": _largest,
        f"argmin_over_{_kind}": lambda field: _first(field, _smallest(field)),
        f"argmax_over_{_kind}": lambda field: _first(field, _largest(field)),
        f"any_over_{_kind}": lambda field: (_wide(field) != 0).any(0),
    }
