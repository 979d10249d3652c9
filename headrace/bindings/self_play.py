"""The CPU kernel for self-play: T moves of the learner, all moves of its opponents and all steps of compiled games in
one call."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from headrace.bindings import acting, collector_cpu  # noqa: F401 - whose kernels are asked later
from headrace.bindings.actor_critic_layout import normalizer_of
from headrace.bindings.arguments import draws_fit
from headrace.bindings.bound import Bound
from headrace.bindings.digests import DIGESTS
from headrace.core import rng
from headrace.core.fused import kernel_of, register
from headrace.data.rollout import Rollout
from headrace.envs.compiled.env import CompiledEnv
from headrace.kernels.language.ir import MOVER
from headrace.kernels.learning import self_play_arguments as given
from headrace.kernels.nn.layout import BLOCK, WORKERS, aligned, rounded
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
LINE = 8  # words of a cache line
FLAGS = 5  # rows of flags in headrace.kernels.learning.self_play_games


class _Games:
    """The call that plays T moves of one policy in the games of one env, while their memory stays the same."""

    def __init__(self, env: SelfPlayEnv, policy: ActorCritic, rollout: Rollout, step: Call) -> None:
        self.env, steps, games = env, rollout.num_steps, rollout.num_envs
        self.policies = _policies(policy, 1 + env.league.opponents)
        self.slots, self.spent = np.tile(step.slots, (WORKERS, 1)), np.zeros((WORKERS, LINE), np.uint64)
        self.numbers = np.zeros(games, np.int64)  # of the policies that play
        opponents = WORKERS, env.league.opponents
        self.scores, self.games = np.zeros(opponents), np.zeros(opponents, np.int64)
        own = (env._return, env._margin, env._length, env._played, env._rated, env._opponent)
        state = given.GameState._make((*(x.numpy() for x in own), self.numbers, self.scores, self.games))
        actor, unread = acting.actor_of(policy), np.zeros(LAST * 2 * games, np.float32)
        arguments = given.GamesArguments(
            self.policies,
            _columns(actor, rollout, rollout.log_prob.view(-1).numpy(), rollout.value.view(-1).numpy()),
            _columns(actor, env._inner, unread, unread),
            state,
            envs := _env_state(env.env.target),  # type: ignore[attr-defined]
            room := _room(envs, policy, actor),
            _numbers(env, policy, rollout),
            (np.uint64(step.function.address), np.uint64(self.slots.shape[1])),
            self.slots.reshape(-1),
            self.spent.reshape(-1),
        )
        whole = (0, queue_state(), arguments)
        self.call = Call(entry("learning.self_play_games", "play", whole, ANNOUNCEMENT), whole)
        numbers = arguments._fields.index("numbers"), given.GameNumbers._fields.index("own_draws")
        self.counters, self.threads = self.call.slot(2, *numbers), actor.threads(steps * games)
        self.stuck, self.work_queue = room.stuck, WorkQueue()

    def run(self, collector: InlineCollector, first_step: int) -> dict[str, float]:
        """Play, and return the seconds spent in the learner's part and in the rest."""
        env, policy = self.env, collector.policy
        env.begin_rollout()
        for number, one in enumerate((policy, *env._rivals)):
            self._take(number, one)  # type: ignore[arg-type]
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
        inference, games = map(sum, zip(*self.spent[: self.threads, :2].tolist(), strict=True))
        if not inference + games:  # the processor's cycle counter cannot be read
            return {"collecting": seconds}
        return {"inference": seconds * inference / (inference + games), "env": seconds * games / (inference + games)}

    def _take(self, number: int, policy: ActorCritic) -> None:
        """Copy what differs between the policies."""
        to, normalizer = self.policies, normalizer_of(policy)
        parameters = acting.actor_of(policy).parameters
        to.parameters[number, : len(parameters)] = parameters
        to.value_scale[number] = acting.value_scale(policy)
        to.center[number], to.scale[number] = normalizer.center, normalizer.scale


def _policies(policy: ActorCritic, count: int) -> given.Policies:
    actor, normalizer = acting.actor_of(policy), normalizer_of(policy)
    first = actor.policy_arguments(policy, normalizer)
    spread = np.tile(first.head.spread, (count, 1, 1))
    numbers = aligned(count, rounded(len(actor.parameters)))
    inputs = np.zeros((2, count, len(normalizer.center)), np.float32)
    scales = np.zeros((2, count, 2), np.float32)  # of heads, and of values
    return given.Policies(first, numbers, spread, scales[0], scales[1], inputs[0], inputs[1])


def _columns(actor: acting.Acting, rollout: Rollout, log_prob: np.ndarray, value: np.ndarray) -> given.GameColumns:
    seen, action = rollout.observation, _actions(rollout)
    names = ("reward", "terminated", "truncated", "episode_return", "episode_length")
    return given.GameColumns(
        *(np.uint64(seen.stride(2)), np.uint64(action.shape[1])),
        *(seen.permute(2, 0, 1).reshape(-1).numpy(), rollout.valid.view(-1).numpy()),
        *(*actor.column(action.reshape(-1).numpy()), log_prob, value),
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


def _room(env: given.EnvState, policy: ActorCritic, actor: acting.Acting) -> given.GameRoom:
    block, draws = int(BLOCK), -(-policy.num_draws // 4) * 4
    state = int(env.float_rows), int(env.integer_rows), sum(x.shape[1] for x in env.arrays)
    held = [np.zeros((WORKERS, rows * block), kind) for rows, kind in zip(state, ("f4", "i4", "u1"), strict=True)]
    flags, own = np.zeros((WORKERS, FLAGS, block), np.bool_), aligned(WORKERS, draws * block)
    stuck = np.zeros((WORKERS, 3), np.int64)
    return given.GameRoom._make((actor.scratch(), own, *held, aligned(WORKERS, block), flags, stuck))


def _numbers(env: SelfPlayEnv, policy: ActorCritic, rollout: Rollout) -> given.GameNumbers:
    none, features = (np.uint64(0),) * 3, rollout.observation.shape[2]
    sizes = (
        rollout.num_steps,
        rollout.num_envs,
        env._half,
        env.env.takes_turns,
        features,
        policy.num_draws,
        MOST_MOVES,
    )
    return given.GameNumbers._make((*map(np.uint64, sizes), none, none, np.float32(env._scale)))


_games: Bound[_Games] = Bound()


def serves(collector: InlineCollector, first_step: int | Tensor) -> bool:
    """Whether the games are compiled for the CPU, and all policies have the kernels for acting."""
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
    seen, layouts = rollout.observation[0], []
    for one in (policy, *env._rivals):
        assert isinstance(one, ActorCritic)
        if kernel_of(ActorCritic.act, one, seen, None, None) is not acting.act:
            return False
        tables = acting.actor_of(one).tables
        layouts.append((tables.network.layers.tobytes(), tables.head.log_std, tables.offsets))
    return len(set(layouts)) == 1


@register("collector.steps", serves, DIGESTS["collector.steps"], (InlineCollector,))
@torch.no_grad()
def steps(collector: InlineCollector, first_step: int) -> None:
    """headrace.parallel.collector.steps, with the same bits as the kernels for acting and stepping."""
    env, policy, rollout = collector.env, collector.policy, collector.rollout
    assert isinstance(env, SelfPlayEnv) and isinstance(policy, ActorCritic)
    target = env.env.target  # type: ignore[attr-defined]
    actor, step = acting.actor_of(policy), target.bound(env._inner)
    games = _games.get(lambda: _Games(env, policy, rollout, step), rollout, actor, step)
    for part, seconds in games.run(collector, first_step).items():
        collector.timer.add(part, seconds)
