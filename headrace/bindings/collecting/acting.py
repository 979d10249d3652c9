"""act() and value() of Headrace's own policies by machine code that is made of them.

One program serves all calls with arguments of one kind. Its rows do not depend on each other, so a row has the same
bits in a batch of any size, on any number of threads, and however a rollout is collected.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headrace.bindings.compiled.compiled_acting import (
    SAMPLE,
    WORTH_HELP,
    CompiledOutputs,
    acting,
    evaluating,
    exploring,
)
from headrace.bindings.compiled.loss_program import Program, in_memory
from headrace.bindings.compiled.loss_tries import Tries
from headrace.core.closure import Reach
from headrace.core.fused import AsChosen, register
from headrace.core.looking import is_noted, note
from headrace.data.rollout import Group, tree_map
from headrace.kernels.rows import slots
from headrace.kernels.rows.reasons import NotRows, of_compiler
from headrace.kernels.rows.row_plan import block_for
from headrace.kernels.rows.targets.cpu_program import CpuProgram, Memory
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.actor_q import ActorQ
from headrace.policies.base import Policy, PolicyOutput, kind_of
from headrace.policies.examination import examine
from headrace.policies.networks import VectorEncoder
from headrace.policies.q_network import QNetwork

# what act() of each class returns
OUTPUTS: dict[type, tuple[str, ...]] = {
    ActorCritic: ("action", "log_prob", "value"),
    ActorQ: ("action",),
    QNetwork: ("action", "value"),
}


class Acts:
    """A program of a policy, as long as nothing in the policy is replaced or moved. Several threads may call it at
    once. It does not keep the policy.

    reach: the code that it was made of. copies: inputs of which a copy is read, since they are not float32: they may
    have other numbers at each call."""

    def __init__(self, program: Program) -> None:
        self.program, self.reach = program, program.let_go()
        self.copies = [i for i, x in enumerate(program.registered) if x is not None and in_memory(x) is not x]
        self._again = sorted({*program.looked_up, *self.copies})  # what may lie elsewhere at each call
        made = [program.output(i, 1) for i in range(len(program.results))]
        places = [slots.result(i, *program.code.sizes) for i in range(len(made))]
        self._outputs = [(place, x.shape[1:], x.dtype) for place, x in zip(places, made, strict=True)]
        self._free: list[Memory] = []  # that no thread is using

    def run(self, given: tuple[Any, ...]) -> list[Tensor]:
        """Compute all outputs. given: what the function that it was made of takes."""
        program, values = self.program, self.program.values(given)
        rows = values[program.columns[0]].shape[0]
        threads = self.threads(rows)
        memory = self.memory(values)
        memory.prepare(rows, threads)
        kept, found, words = program.point(memory.words, values, self._again), list[Tensor](), memory.words
        for place, shape, dtype in self._outputs:
            output = torch.empty((rows, *shape), dtype=dtype)
            words[place] = output.data_ptr()
            found.append(output)
        memory.run(threads)
        self._free.append(memory)
        del kept
        return found

    def threads(self, rows: int) -> int:
        """Number of threads where computing so many rows is worth waking others, else 1."""
        return 1 if self.program.work * rows < WORTH_HELP else self.program.threads(rows)

    def memory(self, values: list[Tensor]) -> Memory:
        """Memory of a call, in which the addresses of the policy's tensors and the outputs' strides are written. run()
        gives it back."""
        try:
            return self._free.pop()
        except IndexError:  # a first call, or as many at once as never before
            memory = Memory(self.program.cpu)
        self.program.point(memory.words, values)
        for i in range(len(self._outputs)):
            self.program.point_output(memory.words, i, self.program.output(i, 1))
        return memory


class _Refused(NamedTuple):
    """A reason why there is no program, and the code that it is about; None where that was not read."""

    reason: str
    reach: Reach | None


class _Last(threading.local):
    """The program that was found last in a thread, and the ids of what it was found for."""

    call: tuple[int, ...] = ()
    acts: Acts | None = None


_last, _making = _Last(), threading.Lock()


def is_ours(policy: Policy) -> bool:
    """True for a policy of Headrace's classes throughout."""
    kept = examine(policy).kept
    if is_ours not in kept:
        kinds = (kind_of(policy), *map(type, [*policy.modules()][1:]))  # with the parts, which may be a user's
        kept[is_ours] = all(kind.__module__.startswith(("headrace.", "torch.")) for kind in kinds)
    return kept[is_ours]  # type: ignore[no-any-return]


def is_own(policy: Policy) -> bool:
    """True for a policy whose act() these programs serve: of Headrace's classes, and without recurrent state."""
    return _is_own(policy, examine(policy).kept)


def _is_own(policy: Policy, kept: dict[Any, Any]) -> bool:
    if is_own not in kept:
        stateless = policy.recurrent == "none" and not policy.state_width
        kept[is_own] = kind_of(policy) in OUTPUTS and stateless and is_ours(policy)
    return kept[is_own]  # type: ignore[no-any-return]


def explores_apart(policy: Policy) -> bool:
    """True for a policy with a probability of a random action for each environment."""
    return isinstance(policy, QNetwork) and len(policy.exploration) > 1


def act_of(policy: Policy, observation: Any, random: Tensor | None) -> Acts | str | bool:
    """The program of act() for such arguments, else why there is none; False where that need not be said."""
    if random is not None and (random.dtype != torch.float32 or random.shape[1:] != (policy.num_draws,)):
        return False
    if random is not None and explores_apart(policy):
        return _found(policy, exploring(), (observation, random, random[:, 0]))
    return _found(policy, acting(OUTPUTS[kind_of(policy)]), (observation, None, random, None))


def value_of(policy: Policy, observation: Any) -> Acts | str | bool:
    """The program of value() for such observations; else as act_of()."""
    return _found(policy, evaluating(), (observation, None))


def given_to_act(policy: Policy, observation: Any, random: Tensor | None) -> tuple[Any, ...]:
    """The arguments with which the program that act_of() finds is called."""
    if random is None or not explores_apart(policy):
        return policy, observation, None, random, None
    apart: Any = policy.exploration
    return policy, observation, random, apart if len(apart) == len(random) else apart.mean().expand(len(random))


def _found(policy: Policy, compiled: CompiledOutputs, columns: tuple[Any, ...]) -> Acts | str | bool:
    """The program of a function of the policy and these arguments, each of which has a row for each row."""
    seen = examine(policy)
    if seen.altered:
        return seen.altered
    if type(policy.encoder) is VectorEncoder and getattr(columns[0], "dtype", None) is not torch.float32:
        return False  # plain PyTorch says what is wrong
    sizes: set[int] = set()
    looks = _look(columns, sizes)
    if looks is None or len(sizes) != 1 or 0 in sizes or not _is_own(policy, seen.kept):
        return False
    rows = sizes.pop()
    key = compiled, looks, block_for(rows)
    found = seen.kept.get(key)
    if found is None or not is_current(found.reach):
        with _making:
            found = seen.kept[key] = _made(compiled, (policy, *columns), rows)
    return found if isinstance(found, Acts) else AsChosen(found.reason)


def _look(parts: Iterable[Any], sizes: set[int]) -> Hashable | None:
    """All of arguments but their numbers and their rows; None for what no program reads. sizes: numbers of rows are
    added."""
    looks = list[Hashable]()
    for x in parts:
        if x is None:
            looks.append(None)
        elif isinstance(x, Tensor):
            if not x.dim() or x.device.type != "cpu" or x.layout is not torch.strided or x.requires_grad:
                return None
            size, *shape = x.shape
            sizes.add(size)
            looks += (x.dtype, *shape)
        elif isinstance(x, Group):
            names, members = zip(*x, strict=True)
            if (inner := _look(members, sizes)) is None:
                return None
            looks += (names, inner)
        else:
            return None
    return (*looks,)


def is_current(reach: Reach | None) -> bool:
    """True if code is what it was."""
    if reach is not None and not is_noted(reach):
        if not reach.is_current():
            return False
        note(reach)
    return True


def _made(compiled: CompiledOutputs, given: tuple[Any, ...], rows: int) -> Acts | _Refused:
    """A program, or why there is none. It is made of SAMPLE rows, whatever their number is."""
    numbers, reach = torch.arange(SAMPLE) % rows, None
    policy, *columns = given
    given = policy, *(tree_map(lambda x: x[numbers], column) for column in columns)
    try:
        conditions = compiled._conditions(given, Tries(), block_for(rows))
        reach = conditions.reach
        program = compiled._program(given, conditions)
        if not isinstance(program.code, CpuProgram) or program.code.layout.phases > 1:
            return _Refused("a row of its result depends on the others", reach)
        return Acts(program)
    except NotRows as error:
        return _Refused(str(error), reach)
    except Exception as error:  # plain PyTorch is right, whatever the compiler does
        return _Refused(str(of_compiler(error)), reach)


def _answer(found: Acts | str | bool, *call: object) -> bool | str:
    """True if a kernel serves a call for which this was found; else why not."""
    _last.acts, _last.call = (found, (*map(id, call),)) if isinstance(found, Acts) else (None, ())
    return True if isinstance(found, Acts) else found


def _noted(*call: object) -> Acts | None:
    """The program that _answer() was given for this call, if it was the last one."""
    return _last.acts if _last.call == (*map(id, call),) else None


def _serves(policy: Policy, observation: Any, rnn_state: Any = None, random: Tensor | None = None) -> bool | str:
    if rnn_state is not None or torch.is_grad_enabled() or kind_of(policy) not in OUTPUTS:
        return False
    return _answer(act_of(policy, observation, random), policy, observation, random)


def _serves_value(policy: Policy, observation: Any, rnn_state: Any = None) -> bool | str:
    if rnn_state is not None or torch.is_grad_enabled() or kind_of(policy) not in OUTPUTS:
        return False
    return _answer(value_of(policy, observation), policy, observation)


@register("q_network.act", _serves)
@register("actor_q.act", _serves)
@register("actor_critic.act", _serves)
def act(policy: Policy, observation: Any, rnn_state: Any, random: Tensor | None) -> PolicyOutput:
    """Policy.act(), within rounding."""
    acts = _noted(policy, observation, random) or act_of(policy, observation, random)
    assert isinstance(acts, Acts)  # else _serves() had said so
    found = dict(zip(OUTPUTS[kind_of(policy)], acts.run(given_to_act(policy, observation, random)), strict=True))
    return PolicyOutput(found["action"], found.get("log_prob"), found.get("value"), None)


@register("actor_critic.value", _serves_value)
def value(policy: Policy, observation: Any, rnn_state: Any = None) -> Tensor:
    """headrace.policies.actor_critic.ActorCritic.value, with the bits of act()."""
    acts = _noted(policy, observation) or value_of(policy, observation)
    assert isinstance(acts, Acts)  # else _serves_value() had said so
    return acts.run((policy, observation, None))[0]
