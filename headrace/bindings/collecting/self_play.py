"""The CPU kernel for self-play: T moves of the learner, all moves of its opponents and all steps of compiled games in
one call."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.bindings.arguments import draws_fit
from headrace.bindings.bound import Bound
from headrace.bindings.collecting.acting import act_of, value_of
from headrace.bindings.collecting.part_times import LINE, seconds_of_parts
from headrace.bindings.compiled.placed_program import PlacedProgram
from headrace.bindings.compiled.row_functions import ModuleProgram
from headrace.bindings.digests import DIGESTS
from headrace.core import rng
from headrace.core.fused import register
from headrace.data.rollout import Rollout, each_column, flatten
from headrace.envs.compiled.env import CompiledEnv
from headrace.kernels.language.ir import MOVER
from headrace.kernels.learning import self_play_arguments as given
from headrace.kernels.nn.layout import BLOCK, WORKERS, aligned
from headrace.kernels.rows import slots
from headrace.kernels.runtime.entry_points import entry
from headrace.kernels.runtime.native import Call
from headrace.kernels.runtime.thread_pool import WorkQueue, queue_state
from headrace.kernels.targets.cpu.env import CpuEnvs
from headrace.parallel.collector import InlineCollector, acts_as_written, output_columns
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.base import is_kind
from headrace.policies.networks import VectorEncoder
from headrace.self_play.games import LAST, MOST_MOVES, SelfPlayEnv

ANNOUNCEMENT = "compiling the games of self-play (once, about 8 s) ..."
FLAGS = 5  # rows of flags in headrace.kernels.learning.self_play_games


class _Games:
    """The call that plays T moves of one policy in the games of one env, while their memory stays the same. acts: of
    the policy and its opponents. value: of the policy."""

    def __init__(
        self,
        env: SelfPlayEnv,
        policy: ActorCritic,
        rollout: Rollout,
        step: Call,
        acts: list[ModuleProgram],
        value: ModuleProgram,
    ) -> None:
        self.env, steps, games = env, rollout.num_steps, rollout.num_envs
        self.steps, self.spent = np.tile(step.slots, (WORKERS, 1)), np.zeros((WORKERS, LINE), np.uint64)
        self.numbers = np.zeros(games, np.int64)  # of the policies that play
        opponents = WORKERS, env.league.opponents
        self.scores, self.games = np.zeros(opponents), np.zeros(opponents, np.int64)
        own = (env._return, env._margin, env._length, env._played, env._rated, env._opponent)
        state = given.GameState._make((*(x.numpy() for x in own), self.numbers, self.scores, self.games))
        envs = _env_state(env.env.target)  # type: ignore[attr-defined]
        room, policies, unread = _room(envs, policy), [policy, *env._rivals], torch.zeros(LAST * 2 * games)
        columns = [flatten(x) for x in (rollout.action, rollout.log_prob, rollout.value[:steps])]
        of_both = [flatten(env._inner.action), unread, unread]
        self._players = (  # kept, because the call has their addresses
            _players([policy], acts[:1], flatten(rollout.observation[:steps]), room.draws, columns),
            _players(policies, acts, flatten(env._inner.observation[:LAST]), room.draws, of_both),
            [PlacedProgram(value.program, (policy, rollout.observation[-1], None), [rollout.value[-1]])],
        )
        first, others, last = (_player(each, room.draws) for each in self._players)
        arguments = given.GamesArguments(
            first,
            others,
            last,
            _columns(rollout),
            _columns(env._inner),
            state,
            envs,
            room,
            _numbers(env, policy, rollout),
            (np.uint64(step.function.address), np.uint64(self.steps.shape[1])),
            self.steps.reshape(-1),
            self.spent.reshape(-1),
        )
        whole = (0, queue_state(), arguments)
        self.call = Call(entry("learning.self_play_games", "play", whole, ANNOUNCEMENT), whole)
        numbers = arguments._fields.index("numbers"), given.GameNumbers._fields.index("own_draws")
        self.counters, self.threads = self.call.slot(2, *numbers), acts[0].threads(steps * games)
        self.stuck, self.work_queue = room.stuck, WorkQueue()

    @property
    def fits(self) -> bool:
        """True if columns are read and written where they lie."""
        return all(placed.fits for each in self._players for placed in each)

    def run(self, collector: InlineCollector, first_step: int) -> dict[str, float]:
        """Play, and return the seconds spent in the learner's part and in the rest."""
        env, policy = self.env, collector.policy
        env.begin_rollout()
        for one, part in env._opponents:
            number = 0 if one is policy else 1 + env._rivals.index(one)
            self.numbers[env._order[part].numpy()] = number
        own = rng.word(collector.seed), int(rng.Purpose.ACTION), first_step
        theirs = rng.word(env.seed), int(rng.Purpose.OPPONENT), env._draws
        self.call.slots[self.counters : self.counters + 6] = (*own, *theirs)
        for zeros in (self.spent, self.scores, self.games, self.stuck):
            zeros[:] = 0
        started = perf_counter()
        self.work_queue.run(self.call, self.threads)
        seconds = perf_counter() - started
        for mover, moves, _ in self.stuck[self.stuck[:, 2] > 0].tolist():
            env.check_movers(torch.tensor([mover]), moves)
        env.end_rollout(collector.rollout, self.scores.sum(0), self.games.sum(0))
        return seconds_of_parts(self.spent, self.threads, seconds)


def _players(
    policies: list[Any], acts: list[ModuleProgram], seen: Tensor, draws: np.ndarray, columns: list[Tensor]
) -> list[PlacedProgram]:
    """The programs of policies for the same columns."""
    random = torch.from_numpy(draws[0]).view(-1, int(BLOCK)).t()
    found = []
    for policy, own in zip(policies, acts, strict=True):
        drawn = random[:, : policy.num_draws]
        found.append(PlacedProgram(own.program, (policy, seen, None, drawn, None), columns))
    return found


def _player(placed: list[PlacedProgram], draws: np.ndarray) -> given.Player:
    """Programs as the kernel takes them."""
    first = placed[0].program
    columns = {first.sources[i].name: slots.column(position) for position, i in enumerate(first.columns)}
    drawn = columns.get("random", 0)
    for each in placed:
        each.memory.prepare(int(BLOCK), 1)
        each.memory.words[slots.TASK] = slots.ALL
        each.workers.take(each.memory.words, WORKERS)
    return given.Player(
        entries=np.array([each.program.cpu.native.address for each in placed], np.uint64),
        slots=np.concatenate([each.workers.slots for each in placed]),
        each=np.uint64(placed[0].memory.count),
        moving=placed[0].moving[placed[0].moving[:, 0] != drawn],
        draws=np.uint64(drawn),
        random=np.array((draws.ctypes.data, draws.strides[0])),
    )


def _columns(rollout: Rollout) -> given.GameColumns:
    seen, action = rollout.observation, _actions(rollout)
    names = ("reward", "terminated", "truncated", "episode_return", "episode_length")
    nothing = np.empty(0, np.int32), np.empty(0, np.float32)
    numbers = action.reshape(-1).numpy()
    choices, amounts = (numbers, nothing[1]) if numbers.dtype == np.int32 else (nothing[0], numbers)
    return given.GameColumns(
        *(np.uint64(seen.stride(2)), np.uint64(action.shape[1])),
        *(seen.permute(2, 0, 1).reshape(-1).numpy(), rollout.valid.view(-1).numpy()),
        choices,
        amounts,
        *(getattr(rollout, name).view(-1).numpy() for name in names),
    )


def _actions(rollout: Rollout) -> Tensor:
    """Actions [K, T * N]."""
    return rollout.action.view(rollout.num_steps * rollout.num_envs, -1).t()


def _env_state(target: CpuEnvs) -> given.EnvState:
    names = [field.name for field in target.ir.integers]
    bytes_of = [x.view(len(x), -1).numpy().view(np.uint8) for x in target._stored.values()]
    arrays = np.zeros((target.num_envs, 0), np.uint8), *bytes_of
    rows = (np.uint64(pack.shape[1]) for pack in (target.floats, target.integers))
    mover = np.uint64(names.index(MOVER) if MOVER in names else 0)
    packs = target.floats.numpy().ravel(), target.integers.numpy().ravel()
    return given.EnvState._make((*packs, arrays, *rows, np.uint64(target._per_block), mover))


def _room(env: given.EnvState, policy: ActorCritic) -> given.GameRoom:
    block, draws = int(BLOCK), -(-policy.num_draws // 4) * 4
    state = int(env.float_rows), int(env.integer_rows), sum(x.shape[1] for x in env.arrays)
    held = [np.zeros((WORKERS, rows * block), kind) for rows, kind in zip(state, ("f4", "i4", "u1"), strict=True)]
    flags, own = np.zeros((WORKERS, FLAGS, block), np.bool_), aligned(WORKERS, draws * block)
    stuck = np.zeros((WORKERS, 3), np.int64)
    return given.GameRoom._make((own, *held, aligned(WORKERS, block), flags, stuck))


def _numbers(env: SelfPlayEnv, policy: ActorCritic, rollout: Rollout) -> given.GameNumbers:
    none, features = (np.uint64(0),) * 3, rollout.observation.shape[2]
    sizes = (
        rollout.num_steps,
        rollout.num_envs,
        env._half,
        env.env.takes_turns,
        features,
        _actions(rollout).shape[0],
        policy.num_draws,
        MOST_MOVES,
    )
    return given.GameNumbers._make((*map(np.uint64, sizes), none, none, np.float32(env._scale)))


_games: Bound[_Games] = Bound()


def serves(collector: InlineCollector, first_step: int | Tensor) -> bool:
    """Tell whether the games are compiled for the CPU, and all policies act by programs."""
    env, policy, rollout = collector.env, collector.policy, collector.rollout
    if type(env) is not SelfPlayEnv or "step" in vars(env) or not acts_as_written(collector):
        return False
    inner = env.env
    if type(inner) is not CompiledEnv or inner.backend != "cpu" or inner.step != inner.target.step or inner.ir.frames:
        return False
    if not is_kind(policy, ActorCritic) or type(policy.encoder) is not VectorEncoder or rollout.observation.dim() != 3:
        return False
    if output_columns(rollout) != ["action", "log_prob", "value"] or torch.is_grad_enabled() or not policy.num_draws:
        return False
    if type(collector)._random is not InlineCollector._random or "_random" in vars(collector) or env.first_env:
        return False
    if isinstance(first_step, Tensor) or not draws_fit(collector.seed, 0, 1, env.num_envs, 1, 0):
        return False
    columns = (_actions(rollout), _actions(env._inner), rollout.log_prob, rollout.value)
    if policy is not env._policy or not all(x.is_contiguous() for x in columns):
        return False
    games = _games_of(collector)
    return games is not None and games.fits


def _games_of(collector: InlineCollector) -> _Games | None:
    """The call for this collector; None where a policy has no program, or another one than the learner's."""
    env, policy, rollout = collector.env, collector.policy, collector.rollout
    assert isinstance(env, SelfPlayEnv) and isinstance(policy, ActorCritic)
    seen, random = rollout.observation[0], torch.empty(rollout.num_envs, policy.num_draws)
    acts, value = [act_of(one, seen, None, random) for one in (policy, *env._rivals)], value_of(policy, seen, None)
    every: tuple[Any, ...] = (*acts, value)
    if policy.state_width or not all(isinstance(own, ModuleProgram) and not own.copies for own in every):
        return None
    *found, of_value = every
    if len({(own.program.code.sizes, own.program.cpu.layout.outputs, *own.program.columns) for own in found}) > 1:
        return None
    step = env.env.target.bound(env._inner)  # type: ignore[attr-defined]
    lie = [column for _, column in each_column(rollout.columns, rollout)]
    return _games.get(lambda: _Games(env, policy, rollout, step, found, of_value), rollout, step, value, *acts, *lie)


@register("collector.steps", serves, DIGESTS["collector.steps"], (InlineCollector,))
@torch.no_grad()
def steps(collector: InlineCollector, first_step: int) -> None:
    """headrace.parallel.collector.steps, with the same bits as acting and stepping by turns."""
    for part, seconds in _games.last(collector.rollout).run(collector, first_step).items():
        collector.timer.add(part, seconds)
