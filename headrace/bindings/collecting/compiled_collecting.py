"""Collecting with any policy by machine code that is made of its act(): T steps of compiled environments in one call;
and a call per step for other environments, in which what stands around a program's call is looked up once.

Policies of Headrace have the program of all their calls (headrace.bindings.collecting.acting), so that the bits of a
rollout are the same however it is collected."""

from __future__ import annotations

from time import perf_counter
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from headrace.bindings.arguments import draws_fit
from headrace.bindings.bound import Bound
from headrace.bindings.collecting import (
    gpu_collecting,  # noqa: F401 - whose kernels are asked too
    self_play,  # noqa: F401 - whose kernels are asked first
)
from headrace.bindings.collecting.acting import (
    OUTPUTS,
    act_of,
    called_to_act,
    explores_apart,
    is_ours,
    is_own,
    value_of,
)
from headrace.bindings.collecting.part_times import LINE, seconds_of_parts
from headrace.bindings.compiled.compiled_acting import (
    WORTH_HELP,
    acting,
    evaluate_last,
    evaluation_of,
    next_rows,
    sample,
)
from headrace.bindings.compiled.compiled_losses import count_again
from headrace.bindings.compiled.loss_program import Program
from headrace.bindings.compiled.placed_program import PlacedProgram
from headrace.bindings.compiled.row_functions import ModuleProgram
from headrace.bindings.digests import DIGESTS
from headrace.core import rng
from headrace.core.fused import register
from headrace.core.looking import Moment, looked_once, moment
from headrace.data.rollout import Rollout, each_column, flatten, tree_map
from headrace.envs.compiled.env import CompiledEnv
from headrace.kernels.nn.layout import BLOCK, WORKERS
from headrace.kernels.rows import slots
from headrace.kernels.rows.targets.cpu_arguments import Collecting
from headrace.kernels.runtime.entry_points import entry
from headrace.kernels.runtime.native import Call
from headrace.kernels.runtime.thread_pool import WorkQueue, queue_state
from headrace.kernels.targets.cpu.env import CpuEnvs
from headrace.parallel.collector import InlineCollector, acts_as_written, output_columns
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.base import Policy, kind_of
from headrace.policies.heads import HybridHead
from headrace.policies.recurrent import RecurrentActorCritic

ANNOUNCEMENT = "compiling the collector for compiled policies (once, about 3 s) ..."


class _Acts:
    """Acts for one policy into the columns of one rollout, while both lie where they lay."""

    def __init__(self, program: Program, policy: Policy, rollout: Rollout) -> None:
        steps, envs = rollout.num_steps, rollout.num_envs
        self.random, self.states = torch.zeros(policy.num_draws, steps, envs), None
        self.own = is_own(policy)
        outputs = (
            _outputs(policy, rollout) if self.own else [_column(rollout, name) for name in output_columns(rollout)]
        )
        if policy.state_width:
            self.states = torch.zeros(steps + 1, envs, policy.state_width)
            outputs.append(flatten(self.states[1:]))
        self.threads = self._threads(program, steps * envs)
        apart = self.own and explores_apart(policy)
        self.exploration = torch.zeros(steps, envs) if apart else None  # of each environment
        self.placed = PlacedProgram(program, self._given(policy, rollout), outputs)
        self.fits = self.placed.fits
        self.moment: Moment | None = None  # in which these were found:
        # whose calls are counted
        self.programs, self.step = [] if self.own else [program], cast("Call | None", None)

    def _threads(self, program: Program, rows: int) -> int:
        return 1 if program.work * rows < WORTH_HELP else program.threads(rows)

    def _given(self, policy: Policy, rollout: Rollout) -> tuple[Any, ...]:
        """The arguments of what the program is made of, all rows of a rollout."""
        seen, valid = (flatten(column[: rollout.num_steps]) for column in (rollout.observation, rollout.valid))
        random, states = self.random.flatten(1).t(), None if self.states is None else flatten(self.states[:-1])
        if not self.own:
            return policy, seen, states, random, valid
        exploration = None if self.exploration is None else self.exploration.flatten()
        called = called_to_act(policy, seen, states, random, valid, exploration)
        assert called is not None  # else it has no program
        return called[1]

    def follow_exploration(self, policy: Any) -> None:
        """Take over the probability of a random action of each environment."""
        if self.exploration is not None:
            apart = policy.exploration
            self.exploration.copy_(apart if len(apart) == self.exploration.shape[1] else apart.mean())

    def take(self, collector: InlineCollector, rows: int) -> None:
        """Take over what changes from rollout to rollout. rows: of a call."""
        self.follow_exploration(collector.policy)
        if self.states is not None:
            self.states[0] = collector.rnn_state
        self.placed.take(rows, self.threads)

    def serves_still(self, collector: InlineCollector) -> bool:
        """True if nothing can have changed since serves() found this; counts its programs' calls."""
        now = moment()
        return (
            now is not None
            and now is self.moment
            and self.step is _compiled_step(collector)
            and count_again(self.programs)
        )

    def run(self, collector: InlineCollector, first_step: int) -> None:
        """Collect, all but the value of the last observation."""
        raise NotImplementedError

    def end(self, collector: InlineCollector) -> None:
        """Give the recurrent states to the rollout and the collector; evaluate the last observation."""
        self._give_states(collector)
        self._evaluate_last(collector)

    def _evaluate_last(self, collector: InlineCollector) -> None:
        """Fill the value of the last observation."""
        if self.own:
            collector.evaluate_bootstrap_row()
        else:
            evaluate_last(collector)

    def _give_states(self, collector: InlineCollector) -> None:
        rollout = collector.rollout
        if self.states is not None:
            if "rnn_state" in rollout.columns:
                rollout.rnn_state.copy_(self.states[:-1])
            collector.rnn_state = self.states[-1].clone()


def _column(rollout: Rollout, name: str) -> Tensor:
    """All rows of a column that the policy fills."""
    return flatten(getattr(rollout, name)[: rollout.num_steps])


def _outputs(policy: Policy, rollout: Rollout) -> list[Tensor]:
    """The columns that a policy of Headrace's writes, those among them that nothing reads."""
    unread = torch.empty(rollout.num_steps * rollout.num_envs)
    names = OUTPUTS[kind_of(policy)]
    return [_column(rollout, name) if name in rollout.columns else unread for name in names]


class _Steps(_Acts):
    """The call that collects T steps of compiled environments, and evaluates the last observation.

    value: the program of value(); None to evaluate by a call of its own."""

    def __init__(self, program: Program, policy: Policy, rollout: Rollout, step: Call, value: Program | None) -> None:
        super().__init__(program, policy, rollout)
        self.step = step
        self.programs += [] if value is None or self.own else [value]
        self.last = None if value is None else self._evaluates(value, policy, rollout)
        last, acts = self.last or self.placed, self.placed
        self.spent, envs = np.zeros((WORKERS, LINE), np.uint64), rollout.num_envs
        self.steps = np.tile(step.slots, (WORKERS, 1))
        collecting = Collecting(
            (acts.workers.work, acts.moving),
            (last.workers.work, last.moving),
            np.uint64(self.last is not None),
            (np.uint64(step.function.address), np.uint64(self.steps.shape[1])),
            self.steps.reshape(-1),
            self.random.view(-1).numpy(),
            (np.uint64(rollout.num_steps), np.uint64(envs), np.uint64(policy.num_draws)),
            (np.uint64(0),) * 5,
            self.spent.reshape(-1),
        )
        arguments = (0, queue_state(), collecting)
        self.call = Call(entry("rows.targets.cpu_collecting", "collect", arguments, ANNOUNCEMENT), arguments)
        self.counter = self.call.slot(2, Collecting._fields.index("counter"))
        self.queue = WorkQueue()

    def _evaluates(self, value: Program, policy: Policy, rollout: Rollout) -> PlacedProgram | None:
        """The program of value() for the last observation; None where the column is not as it writes it."""
        states = None if self.states is None else self.states[-1]
        last = PlacedProgram(value, (policy, rollout.observation[-1], states), [rollout.value[-1]])
        return last if last.fits else None

    def take(self, collector: InlineCollector, rows: int) -> None:
        super().take(collector, rows)
        if self.last is not None:
            self.last.take(rows, self.threads)

    def end(self, collector: InlineCollector) -> None:
        self._give_states(collector)
        if self.last is None:
            self._evaluate_last(collector)

    def run(self, collector: InlineCollector, first_step: int) -> None:
        self.take(collector, min(collector.rollout.num_envs, int(BLOCK)))
        if type(collector)._random is InlineCollector._random and "_random" not in vars(collector):
            numbers = (rng.word(collector.seed), int(rng.Purpose.ACTION), first_step, collector.env.first_env)
            self.call.slots[self.counter : self.counter + 5] = (1, *numbers)
        else:
            self.call.slots[self.counter] = 0
            self.random.copy_(collector._random(first_step).permute(2, 0, 1))
        self.spent[:] = 0
        started = perf_counter()
        self.queue.run(self.call, self.threads)
        seconds = perf_counter() - started
        for part, own in seconds_of_parts(self.spent, self.threads, seconds).items():
            collector.timer.add(part, own)


class Rows(_Acts):
    """A call for each row of a rollout, of environments of any kind."""

    def __init__(self, program: Program, policy: Policy, rollout: Rollout) -> None:
        super().__init__(program, policy, rollout)
        self.threads = self._threads(program, rollout.num_envs)
        # as rows.targets.cpu_arguments.Collecting has it, but for a row of the rollout
        self.moving = self.placed.moving * np.array((1, 1, rollout.num_envs))
        self._places, self._first, self._apart = self.moving.T.copy()
        self.placed.memory.words[slots.TASK] = slots.ALL  # for callers of the program's address

    def begin(self, collector: InlineCollector, random: Tensor) -> None:
        """Prepare for the first row of a rollout. random: the draws of its rows, [T, N, num_draws]."""
        self.random[:, : len(random)] = random.permute(2, 0, 1)
        self.take(collector, collector.rollout.num_envs)

    def act(self, collector: InlineCollector, t: int, random: Tensor | None = None) -> None:
        """Fill row t with what the policy outputs, from its draws among those that were given at the beginning."""
        collector.check_stop()
        memory = self.placed.memory
        memory.words[self._places] = self._first + self._apart * t
        memory.run(self.threads)

    def run(self, collector: InlineCollector, first_step: int) -> None:
        timer, rollout = collector.timer, collector.rollout
        with timer("inference"):
            self.begin(collector, collector._random(first_step))
        for t in range(rollout.num_steps):
            with timer("inference"):
                self.act(collector, t)
            with timer("env"):
                collector.env.step(rollout, t)


_acts: Bound[_Acts] = Bound()
_rows: Bound[Rows] = Bound()


def serves(collector: InlineCollector, first_step: int | Tensor) -> bool | str:
    """True if the policy's act() is compiled, and reads and writes the rollout's columns where they lie; else the
    reason."""
    if isinstance(first_step, Tensor):
        return False
    known = _acts.known(collector.rollout)
    if known is not None and known.serves_still(collector):
        return known.fits
    with looked_once():
        found = program_of(collector)
        if found is None or isinstance(found, str):
            return found or False
        acts = _acts_of(found, collector)
        acts.moment = moment()
        return acts.fits


def program_of(collector: InlineCollector) -> Program | str | None:
    """The program of the policy's act(); why there is none, or None where that need not be said."""
    policy, rollout = collector.policy, collector.rollout
    if rollout.device.type != "cpu" or not acts_as_written(collector):
        return None
    if torch.is_grad_enabled() or not isinstance(collector.rnn_state, Tensor | None):
        return None
    given = next_rows(collector)
    if is_own(policy):
        acts = act_of(policy, *given[1:4])
        return acts.program if isinstance(acts, ModuleProgram) else None  # act() says why
    if is_ours(policy) and not isinstance(getattr(policy, "head", None), HybridHead):
        return None  # of which act() runs in torch wherever it is called
    if len(getattr(policy, "exploration", ())) > 1:  # one for each environment: what acts is of one row
        return None
    program = acting(tuple(output_columns(rollout))).find(given, lambda: sample(collector))
    several = not isinstance(program, str) and program.code.layout.phases > 1  # of these, each needs all rows
    return None if several else program


def rows_of(program: Program, collector: InlineCollector) -> Rows | None:
    """A program as what acts for one row after the other; None where columns do not lie as it reads and writes them."""
    rollout = collector.rollout
    lie = [column for _, column in each_column(rollout.columns, rollout)]
    rows = _rows.get(lambda: Rows(program, collector.policy, rollout), rollout, program, *lie)
    return rows if rows.fits else None


def _acts_of(program: Program, collector: InlineCollector) -> _Acts:
    """The object that acts in place of the collector's policy."""
    step, rollout = _compiled_step(collector), collector.rollout
    value, parts = None if step is None else _evaluation(collector), (program, collector.policy, rollout)
    lie = [column for _, column in each_column(rollout.columns, rollout)]
    return _acts.get(
        lambda: Rows(*parts) if step is None else _Steps(*parts, step, value), rollout, program, step, value, *lie
    )


def _evaluation(collector: InlineCollector) -> Program | None:
    """The program of the policy's value(), where the algorithm declared values."""
    policy, rollout = collector.policy, collector.rollout
    if not is_own(policy):
        return evaluation_of(collector)
    if kind_of(policy) not in (ActorCritic, RecurrentActorCritic) or "value" not in rollout.columns:
        return None
    found = value_of(policy, tree_map(lambda x: x[0], rollout.observation), collector.rnn_state)
    return found.program if isinstance(found, ModuleProgram) else None


def _compiled_step(collector: InlineCollector) -> Call | None:
    """The environments' step as machine code; None where they have none, or their own takes part."""
    env = collector.env
    if type(env) is not CompiledEnv or not isinstance(env.target, CpuEnvs) or env.step != env.target.step:
        return None
    if env.num_agents > 1 or env.ir.frames or not draws_fit(collector.seed, 0, 1, env.num_envs, 1, env.first_env):
        return None
    return env.target.bound(collector.rollout)


@register("collector.steps", serves, DIGESTS["collector.steps"], (InlineCollector,), first=False)
@torch.no_grad()
def steps(collector: InlineCollector, first_step: int) -> None:
    """headrace.parallel.collector.steps, within rounding."""
    acts = _acts.last(collector.rollout)  # which serves() made or found
    acts.run(collector, first_step)
    with collector.timer("inference"):
        acts.end(collector)
