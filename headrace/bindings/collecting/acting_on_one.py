"""Policy.act_on_one: predict() for one observation, from NumPy to NumPy in one call of the policy's program."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.bindings.collecting.acting import called_to_act, is_own, program_for, sees_vectors
from headrace.bindings.compiled.row_functions import LastFound, ModuleProgram, is_current
from headrace.core.fused import register
from headrace.data.flat_dict import FlatDict
from headrace.data.rollout import Group, tree_map
from headrace.data.spaces import Dict
from headrace.kernels.rows import slots
from headrace.policies.base import Policy, kind_of
from headrace.policies.discrete.discrete_actor_q import DiscreteActorQ
from headrace.policies.examination import examine
from headrace.policies.networks import DictEncoder, VectorEncoder
from headrace.policies.numpy_io import to_action
from headrace.policies.rnn import RecurrentEncoder

# floating-point operations up to which acting on one observation takes 10 to 40 us: it keeps the GIL meanwhile
KEEPS_GIL = 200_000
UNIFORM = "policy.random"  # an ActorQ's: 1 where a training's actions are uniform


class ActingOnOne:
    """Acts on one observation at a time by a program, while nothing in the policy is replaced or moved. Several threads
    may call it at once. given: columns of one row, as act() takes them."""

    def __init__(self, policy: Policy, acts: ModuleProgram, given: tuple[Any, ...], drawn: bool) -> None:
        self.acts, self._drawn = acts, drawn
        self._num_draws, self._given = policy.num_draws, given
        self._width = 0 if policy.recurrent == "none" else policy.state_width
        self._seen, self._space = policy.observation_space, policy.action_space
        self._shapes = _shapes(policy)
        self._calls: list[_CallOnOne] = []  # that no thread is using

    def act(self, observation: Any, state: Any, deterministic: bool, generator: torch.Generator | None) -> Any:
        """Same as predict(). None where the observation or the state is not that of one environment."""
        if state is not None and not self._is_state(state):
            return None
        if type(observation) is dict and isinstance(self._seen, FlatDict):
            observation = self._seen.join(observation)
        parts = observation if type(observation) is dict else {"": observation}
        for name, shape in self._shapes.items():
            part = parts.get(name)
            if type(part) is not np.ndarray or part.shape != shape or part.dtype.kind not in "fiu":
                return None
        try:
            call = self._calls.pop()
        except IndexError:  # a first call, or as many at once as never before
            call = _CallOnOne(self.acts, self._given)
        for name, own in call.observation.items():
            own[...] = parts[name]
        if call.state is not None:
            if state is None:
                call.state.fill(0)
            else:
                call.state[...] = state
        if not deterministic:
            draws = torch.rand(1, self._num_draws, generator=generator).numpy()
            if self._drawn:
                call.random[:] = draws
        call.run(call.address)
        action, after = call.action.copy(), None if call.after is None else call.after.copy()
        self._calls.append(call)
        return to_action(self._space, action, single=True), after

    def _is_state(self, state: Any) -> bool:
        if type(state) is not np.ndarray or not self._width:
            return False
        return state.shape == (1, self._width) and state.dtype == np.float32


class _CallOnOne:
    """A call of the program that reads and writes memory of its own. given: columns of one row, of which it has
    copies. state, after: the recurrent state, and that after the step; None without one."""

    def __init__(self, acts: ModuleProgram, given: tuple[Any, ...]) -> None:
        program = acts.program
        self._columns = [tree_map(torch.clone, column) for column in given]
        seen: Any
        seen, before, random, _ = self._columns
        values = program.values((None, *self._columns))
        # a training may go on meanwhile
        values = [torch.zeros_like(x) if s.name == UNIFORM else x for s, x in zip(program.sources, values, strict=True)]
        self.memory = memory = acts.memory(values)
        memory.prepare(1, 1)
        self._outputs = [program.output(i, 1) for i in range(len(program.results))]
        self._kept = program.point(memory.words, values)
        for i, output in enumerate(self._outputs):
            program.point_output(memory.words, i, output)
        memory.words[slots.TASK] = slots.ALL
        parts: Any = seen if isinstance(seen, Group) else [("", seen)]
        self.observation = {name: part.numpy()[0, ...] for name, part in parts}
        self.action = self._outputs[0].numpy()
        self.state: Any = None if before is None else before.numpy()
        self.after: Any = None if before is None else self._outputs[-1].numpy()
        self.random: Any = None if random is None else random.numpy()
        native = program.cpu.native
        self.run = native.run_with_gil if program.work <= KEEPS_GIL else native.run
        self.address = memory.words.ctypes.data


_last = LastFound()


def _shapes(policy: Policy) -> dict[str, tuple[int, ...]]:
    """The shape of each member of an observation; of one without members under an empty name."""
    space = policy.observation_space
    members = space.spaces if isinstance(space, Dict) else {"": space}
    return {name: member.shape or () for name, member in members.items()}


def _sees_vectors_by_name(policy: Policy) -> bool:
    """True for a policy of observations that are a Dict of vectors of float32, all of which it sees."""
    encoder = policy.encoder
    encoder = encoder.encoder if type(encoder) is RecurrentEncoder else encoder
    if type(encoder) is not DictEncoder or not isinstance(policy.observation_space, Dict):
        return False
    vectors = all(type(member) is VectorEncoder for member in encoder.members)
    return vectors and len(encoder.names) == len(policy.observation_space.spaces)


def _given(policy: Policy, drawn: bool) -> tuple[Any, None, Tensor | None]:
    """Arguments of act() for one observation, the first of an episode."""
    seen = {name: torch.zeros(1, *shape) for name, shape in _shapes(policy).items()}
    random = torch.zeros(1, policy.num_draws) if drawn else None
    return (Group(seen) if isinstance(policy.observation_space, Dict) else seen[""]), None, random


def _of(policy: Policy, deterministic: bool) -> ActingOnOne | None:
    """The object that acts for this policy: for vectors, on the CPU; None for others."""
    drawn, kept = policy.samples and not deterministic, examine(policy).kept
    found = kept.get((ActingOnOne, drawn))
    if found is not None and is_current(found.acts.reach):
        return found  # type: ignore[no-any-return]
    if not is_own(policy) or not (sees_vectors(policy) or _sees_vectors_by_name(policy)):
        return None
    if drawn and kind_of(policy) is DiscreteActorQ:
        return None
    acts = program_for(called := called_to_act(policy, *_given(policy, drawn)))
    if called is None or not isinstance(acts, ModuleProgram) or acts.copies:
        return None
    found = kept[ActingOnOne, drawn] = ActingOnOne(policy, acts, called[1][1:], drawn)
    return found


def _serves(policy: Policy, observation: Any, state: Any, deterministic: bool, *_: Any) -> bool | str:
    found = _of(policy, deterministic) if type(observation) in (np.ndarray, dict) else None
    return _last.answer(found, policy, observation, deterministic)


@register("policy.act_on_one", _serves)
def act_on_one(
    policy: Policy, observation: Any, state: Any, deterministic: bool, generator: torch.Generator | None
) -> Any:
    """predict() of one observation, with the bits of act_without_exploration()."""
    one = _last.take(policy, observation, deterministic) or _of(policy, deterministic)
    return None if one is None else one.act(observation, state, deterministic, generator)
