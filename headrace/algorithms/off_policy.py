"""The base of algorithms that learn from a replay buffer: the buffer, counters, and the times of learning.

One iteration appends rows to the buffer, a rollout of `num_steps` steps or `train_freq` steps of one, and takes
gradient steps, each on `batch_size` rows of the buffer. All rows and all noise of an iteration are drawn at once, then
`learn` is called once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn

from headrace import setting_schedules
from headrace.algorithms.adam import Adam
from headrace.algorithms.base import REPLAY_INTRINSIC, intrinsic_of
from headrace.algorithms.config_bases import (
    DeterministicActorConfig,
    OffPolicyConfig,
    StochasticActorConfig,
    fits_utd_ratio,
    gradient_steps,
    policy_settings,
)
from headrace.algorithms.objectives import TD_ERROR, Learned, Objective, mean_metrics, take_steps
from headrace.algorithms.reduce import Reduce, merging, one_learner, rank_of, size_of
from headrace.core import rng
from headrace.core.fused import fused
from headrace.core.terminal import tell
from headrace.core.types import Json, staying
from headrace.data.hindsight import GoalReplay, Goals
from headrace.data.priorities import BYTES, PrioritizedReplay
from headrace.data.replay import Batch, Replay, bytes_needed, plan
from headrace.data.rollout import Column, Columns, Rollout
from headrace.data.sequences import SequenceReplay
from headrace.data.spaces import Space
from headrace.policies.actor_q import ActorQ, check_networks
from headrace.policies.base import Policy
from headrace.policies.examination import Examination, examine
from headrace.policies.flat_parameters import flatten
from headrace.policies.own_parts import check_learnable

if TYPE_CHECKING:  # a default, which typing's own have from Python 3.13 on
    from typing_extensions import TypeVar as _TypeVar

    C = _TypeVar("C", bound=OffPolicyConfig, default=OffPolicyConfig)
else:
    C = TypeVar("C", bound=OffPolicyConfig)
P = TypeVar("P", bound=nn.Module)
STEPPED = ("optimizer", "optimizers", "temperature", "log_temperature")


class OffPolicy(Generic[C]):
    """A policy, its optimizers, target networks, and a replay buffer.

    Subclasses have a class attribute `config`, their default settings, and define make_policy() and objectives().
    """

    name: ClassVar[str]
    policy_arguments: ClassVar[Json] = {}  # of its policy's constructor, that follow from the algorithm
    actions: ClassVar[tuple[type[Space], ...]]  # kinds of spaces it acts in
    delayed_metrics: ClassVar[tuple[str, ...]] = ()  # measured only at one of `policy_delay` gradient steps
    max_lag: ClassVar[int | None] = None
    config: C
    reduce: Reduce = staticmethod(one_learner)
    goals: Goals | None = None  # of the environments, for hindsight
    part: tuple[int, int] = (0, 0)  # number of this learner's first environment, and of all learners' environments
    __setattr__ = staying("policy", "networks", "config", "num_steps", "buffers", *STEPPED)

    def __init__(self, policy: Policy, config: C | None = None, seed: int = 0) -> None:
        self.config = config or self.config
        check_learnable(policy, type(self).__name__, self.config)
        self.policy, self.seed, self.num_steps = policy, seed, self.config.num_steps
        self.optimizers: dict[str, Adam] = {}
        self._examined: Examination | None = None  # the policy, as the optimizers know it
        self.buffers: dict[str, Tensor] = {}  # additional saved state: target networks, each in one buffer [P]
        self.replay: Replay | None = None
        self.intrinsic: Any = intrinsic_of(REPLAY_INTRINSIC, policy, self.config, seed)
        self.iteration: Any = 0  # in a CUDA graph a tensor: all other counts follow from it
        self.rows_per_iteration = 0  # rows of an iteration, of all environments together; 0 before prepare()
        self._found: list[tuple[dict[str, Tensor], dict[str, int]]] = []  # of the present rollout: see add_metrics()

    @classmethod
    def build(
        cls, config: C, observation_space: Space, action_space: Space, seed: int, device: torch.device | str
    ) -> Self:
        """Make this algorithm with its usual policy on a device. Raises TypeError for unsupported spaces."""
        return cls(cls.make_policy(config, observation_space, action_space, seed).to(device), config, seed)

    @classmethod
    def make_policy(cls, config: C, observation_space: Space, action_space: Space, seed: int) -> Policy:
        """Make the usual policy."""
        raise NotImplementedError

    @property
    def rows(self) -> Any:
        """Rows appended so far, masked ones included."""
        return self.iteration * self.rows_per_iteration

    @property
    def updates(self) -> Any:
        """Gradient steps so far."""
        if not (self.rows_per_iteration and self.past_warm_up()):
            return 0
        return (self.iteration - self._waits()) * self.gradient_steps(self.rows_per_iteration)

    def past_warm_up(self) -> bool:
        """Tell whether the next iteration learns. All later iterations do the same, so a CUDA graph can be captured."""
        return isinstance(self.iteration, Tensor) or self.iteration >= self._waits()

    def _waits(self) -> int:
        """Number of iterations before the first one that learns."""
        # at least one row must be there to be drawn
        least = self.replay.n_step_span * (self.part[1] or self.replay.num_envs) if self.replay else 1
        return -(-max(self.config.learning_starts, least) // self.rows_per_iteration) - 1

    def columns(self) -> dict[str, Column | Columns]:
        """Columns that the policy needs in addition to those of every rollout."""
        return self.policy.columns()

    def objectives(self) -> tuple[Sequence[Objective], Learned]:
        """The objectives along which learn() takes gradient steps, in order, and the networks that losses receive."""
        raise NotImplementedError

    def learn(self, batches: Batch, random: Tensor) -> dict[str, Tensor]:
        """One gradient step on each of G batches [G, B]. random: uniform draws [G, B, num_draws()]. Returns metrics."""
        objectives, networks = self.objectives()
        since = self.since(len(random), [objective.every for objective in objectives])
        if (interval := getattr(self.config, "target_interval", 1)) > 1:
            number = self.updates + torch.arange(1, len(random) + 1, device=random.device)
            objectives = [x._replace(tau=x.tau * (number % interval == 0)) for x in objectives]
        metrics, error = take_steps(objectives, networks, batches, random, self.config, since, self.reduce)
        self.prioritize(batches, error)
        return metrics

    def prioritize(self, batches: Batch, error: Tensor | None) -> None:
        """Set the priorities of the rows of batches [G, B] from their TD errors, if the buffer has priorities."""
        if not isinstance(self.replay, PrioritizedReplay):
            return
        if error is None:
            raise ValueError(f"prioritized replay needs {TD_ERROR!r} [B] in the dict of {type(self).__name__}.loss")
        self.replay.update(batches.rows, error)

    def since(self, steps: int, delays: Iterable[int]) -> int:
        """Number of gradient steps since the last multiple of all `delays`, before `steps` further ones. It is 0 if
        `steps` is such a multiple: then it does not matter, and a CUDA graph does not know it."""
        period = math.lcm(*delays)
        return int(self.updates % period) if steps % period else 0

    def learned(self) -> list[tuple[Adam, Iterable[nn.Parameter]]]:
        """The optimizers of the policy, each with the parameters that it learns."""
        return []

    def follow_policy(self) -> None:
        """Learn the policy's present parameters, since its modules and their parameters may have been replaced.

        Raises ValueError for other sizes."""
        learned = self.learned()
        if not {id(optimizer) for optimizer, _ in learned} <= {*map(id, self.optimizers.values())}:
            raise ValueError("an optimizer in `optimizers` was replaced, and learning has the one before: put it back")
        if examine(self.policy) is self._examined and all(optimizer.has_gradients() for optimizer, _ in learned):
            return
        if not all(optimizer.follow(parameters) for optimizer, parameters in learned):
            raise ValueError(
                f"a module of the policy was replaced by one of other sizes, which its optimizer does not know: make "
                f"a new {type(self).__name__} of this policy"
            )
        self._examined = examine(self.policy)

    def num_draws(self) -> int:
        """Number of uniform draws for learning from one row."""
        return 0

    def explore(self) -> None:
        """Set the policy's exploration for the next rollout; self.rows rows were collected so far."""

    def prepare(self, rollout: Rollout) -> str:
        """Allocate the replay buffer. Returns a line about its memory. Raises MemoryError where there is too little."""
        total = self.part[1] or rollout.num_envs
        capacity = self.config.buffer_size // total * rollout.num_envs  # a ring of the same length at all learners
        description = plan(rollout, capacity, extra_bytes=self.extra_bytes_per_step())
        self.rows_per_iteration = (self.config.train_freq or rollout.num_steps) * total
        self.replay = self.make_replay(rollout, capacity)
        self._say_utd_ratio(self.rows_per_iteration)
        return description

    def _say_utd_ratio(self, rows: int) -> None:
        """Report the actual ratio if utd_ratio does not give whole gradient steps for `rows` rows."""
        if fits_utd_ratio(self.config, rows):
            return
        ratio, steps = self.config.utd_ratio, self.gradient_steps(rows)
        tell(
            f"utd_ratio={ratio:g} asks for {ratio * rows:.3g} gradient steps after every {rows} environment steps, and "
            f"{steps} is taken, as with utd_ratio={steps / rows:.3g}: a larger train_freq or num_steps comes closer"
        )

    def extra_bytes_per_step(self) -> int:
        """Bytes of a step in the buffer in addition to its columns, for recurrent states or positions of episodes."""
        if self.config.hindsight:
            return 2 * torch.int64.itemsize
        of_priorities = BYTES * getattr(self.config, "prioritized", False)
        return of_priorities - (-bytes_needed(self.policy.columns(), 1) // self.policy.sequence_length)

    def make_replay(self, rollout: Rollout, capacity: int) -> Replay:
        """Make a replay buffer for rollouts like `rollout`: of rows, or of sequences for a recurrent policy."""
        config = self.config
        if config.hindsight:
            if self.goals is None:
                raise ValueError(f"hindsight needs goals: set `goals` of this {type(self).__name__} to Goals(...)")
            return GoalReplay(rollout, capacity, self.goals, config.hindsight, config.hindsight_goals)
        if getattr(config, "prioritized", False):
            return PrioritizedReplay(rollout, capacity, config.n_steps, alpha=config.priority_alpha)  # type: ignore[attr-defined]
        if self.policy.recurrent == "none":
            return Replay(rollout, capacity, config.n_steps)
        return SequenceReplay(rollout, capacity, config.n_steps, config.sequence_length, config.burn_in)

    def warm_up(self, rollout: Rollout) -> None:
        """Learn once from a random rollout, then restore all state: kernels are compiled before training starts."""
        before = self.state_dict()
        enough = self.config.burn_in + 3 * self.policy.sequence_length + self.config.n_steps
        self.replay = self.make_replay(rollout, (rollout.num_steps + enough) * rollout.num_envs)
        for _ in range(0, enough, rollout.num_steps):
            self.replay.append(rollout)
        self.follow_policy()
        rows = (self.config.train_freq or self.num_steps) * rollout.num_envs
        learn_from_replay(self, self.gradient_steps(rows))
        self.replay = None
        self.load_state_dict(before)

    def update(self, rollout: Rollout, progress: float) -> dict[str, Tensor]:
        """Append a rollout, and learn from the replay buffer, unless that was done while collecting (train_freq).
        Returns metrics under SB3's names; before learning starts n_updates and learning_rate alone. progress: fraction
        of the training done, 0 .. 1."""
        assert self.replay is not None, "prepare() comes before the first update()"
        self.config = setting_schedules.at(self.config, progress)
        rate = self.set_learning_rate(progress)
        if isinstance(self.replay, PrioritizedReplay):
            self.replay.anneal(self.config.priority_beta, progress)  # type: ignore[attr-defined]
        if not self.config.train_freq:
            self.append_and_learn(rollout)
        metrics, self._found = mean_metrics(self._found), []
        with merging(self.policy, self.reduce):
            self.policy.update_statistics(rollout, rollout.reward)
        self.explore()
        zero = torch.zeros((), device=rollout.device)
        return metrics | {"n_updates": zero + self.updates, "learning_rate": zero + rate}

    def append_and_learn(self, rows: Rollout) -> None:
        """One iteration: append rows to the replay buffer, and take the gradient steps that follow them."""
        assert self.replay is not None
        self.follow_policy()
        self.replay.append(rows)
        if self.intrinsic is not None:
            self.intrinsic.observe(rows, self.config.gamma)
        if self.past_warm_up():
            steps = self.gradient_steps(self.rows_per_iteration)
            self.add_metrics(learn_from_replay(self, steps), self.updates, steps)
        self.iteration += 1
        self.explore()

    def add_metrics(self, metrics: dict[str, Tensor], first: Any, steps: int) -> None:
        """Add metrics of gradient steps first .. first + steps - 1 to the sums from which update() returns means."""
        self._found.append((metrics, {name: self.measurements(name, first, steps) for name in metrics}))

    def measurements(self, name: str, first: Any, steps: int) -> int:
        """Number of gradient steps among first .. first + steps - 1 at which a metric is measured."""
        delay = self.config.policy_delay if name in self.delayed_metrics else 1  # type: ignore[attr-defined]
        return delayed_steps(first, steps, delay)

    def steady(self) -> bool:
        """Tell whether all further iterations explore and learn in the same way."""
        return self.past_warm_up() and self.rows >= self.config.learning_starts

    def set_learning_rate(self, progress: float) -> Any:
        """Set the learning rate by the config's schedule, unless it is constant. Returns it."""
        rate = setting_schedules.learning_rate(self.config, progress)
        if rate is None:
            return self.config.learning_rate
        own = () if self.intrinsic is None else (self.intrinsic.optimizer,)
        for optimizer in (*self.optimizers.values(), *own):
            optimizer.learning_rate.fill_(rate)
        return rate

    def gradient_steps(self, rows: int) -> int:
        """Gradient steps of an iteration that collects `rows` rows."""
        return gradient_steps(self.config, rows)

    def batch_rows(self) -> tuple[int, int]:
        """The range of a batch's rows that this learner draws. Sequences are not split."""
        unit, rank, size = self.policy.sequence_length, rank_of(self.reduce), size_of(self.reduce)
        units = self.config.batch_size // unit
        return units * rank // size * unit, units * (rank + 1) // size * unit

    def state_dict(self) -> dict[str, Any]:
        """Copies of the policy's tensors, the optimizers', the buffers and the replay, and the number of iterations."""
        return {
            "policy": {name: tensor.clone() for name, tensor in self.policy.state_dict().items()},
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "buffers": {name: tensor.clone() for name, tensor in self.buffers.items()},
            "replay": None if self.replay is None else self.replay.state_dict(),
            "iteration": self.iteration,
        } | ({} if self.intrinsic is None else {"intrinsic": self.intrinsic.state_dict()})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from state_dict(), bit for bit. Raises ValueError for a replay buffer of another size."""
        self.policy.load_state_dict(state["policy"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        for name, tensor in self.buffers.items():
            tensor.copy_(state["buffers"][name])
        if state["replay"] is not None:
            assert self.replay is not None, "prepare() comes before load_state_dict()"
            self.replay.load_state_dict(state["replay"])
        self.iteration = int(state["iteration"])
        if self.intrinsic is not None:
            self.intrinsic.load_state_dict(state["intrinsic"])


@fused("off_policy.learn_from_replay", "headrace.bindings.collecting.compiled_replay")
def learn_from_replay(algorithm: OffPolicy[Any], number: int) -> dict[str, Tensor]:
    """Draw `number` minibatches of the replay buffer and take a gradient step on each. Returns the metrics' means."""
    replay, config = algorithm.replay, algorithm.config
    assert replay is not None
    draws = replay.draws + algorithm.num_draws()
    first, end = algorithm.batch_rows()
    shape = (number, end - first, draws)
    random = rng.uniform(algorithm.seed, rng.Purpose.REPLAY, algorithm.updates, *shape, replay.ring.device, first)
    batches = replay.sample(random[..., : replay.draws], config.gamma)
    if algorithm.intrinsic is None:
        return algorithm.learn(batches, random[..., replay.draws :])
    batches, metrics = algorithm.intrinsic.rewarded(batches, config)
    return metrics | algorithm.learn(batches, random[..., replay.draws :])


def make_target(policy: P) -> P:
    """Copy a policy as its target network. The tensors of normalisers' statistics are shared."""
    return deepcopy(policy, {id(x): x for x in policy.buffers()}).requires_grad_(False)


class Networks(NamedTuple):
    """The policy of DDPG, TD3, SAC or TQC and its target network, with the buffers that learning changes."""

    policy: ActorQ
    target: ActorQ
    actor_optimizer: Adam
    critic_optimizer: Adam
    target_actor: Tensor  # the target's parameters, each in one buffer [P] laid out as the optimizer's
    target_critics: Tensor

    def learned(self) -> list[tuple[Adam, Iterable[nn.Parameter]]]:
        """The optimizers, each with the parameters that it learns."""
        actor, critics = self.policy.actor_parameters(), self.policy.critic_parameters()
        return [(self.actor_optimizer, actor), (self.critic_optimizer, critics)]


def make_networks(policy: ActorQ, config: Any, **kind: Any) -> Networks:
    """A policy with its optimizers, and a target network with the same weights.

    kind: requirements of the algorithm, see check_networks(). Raises ValueError for a policy of another kind.
    """
    check_networks(policy, **(_atoms(config) | kind))
    target = make_target(policy)
    learned, decay = (policy.actor_parameters(), policy.critic_parameters()), config.weight_decay
    actor, critics = (Adam(p, config.learning_rate, 1e-8, weight_decay=decay) for p in learned)
    buffers = (flatten(target.actor_parameters()), flatten(target.critic_parameters()))
    return Networks(policy, target, actor, critics, *buffers)


def _atoms(config: Any) -> dict[str, Any]:
    """The arguments of an ActorQ that has the atoms of a config, if it has any."""
    if getattr(config, "num_atoms", 1) == 1:
        return {}
    return {"quantiles": config.num_atoms, "support": (config.v_min, config.v_max)}


def actor_q(config: Any, observation_space: Space, action_space: Space, seed: int, **own: Any) -> ActorQ:
    """The policy of a config that is both an ActorQConfig and an OffPolicyConfig. own: further settings of ActorQ."""
    names = ("noise_autocorrelation", "critic_init_scale", "critic_hidden", "norm")
    of_both = {name: getattr(config, name) for name in names} | _atoms(config)
    if isinstance(config, DeterministicActorConfig):
        own["exploration_per_episode"] = config.exploration_max > config.exploration
    if isinstance(config, StochasticActorConfig):
        own |= config.deviation(config.train_freq or config.num_steps)  # type: ignore[attr-defined]
    return ActorQ(observation_space, action_space, seed=seed, **policy_settings(config), **own, **of_both)


def delayed_steps(first: Any, steps: int, delay: int) -> int:
    """Number of the actor's gradient steps, one in `delay`, among the critics' steps first .. first + steps - 1."""
    return steps // delay if steps % delay == 0 else (first % delay + steps) // delay


def means_of_sums(sums: Tensor, counts: dict[str, int]) -> dict[str, Tensor]:
    """Means of metrics from their sums and numbers of measurements, without those that were not measured."""
    return {name: total / count for total, (name, count) in zip(sums, counts.items(), strict=False) if count}
