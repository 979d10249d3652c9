"""The Collector protocol, and the collector in the learner's own process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from headrace.core import rng
from headrace.core.fused import fused
from headrace.core.stopping import Stopped
from headrace.core.timer import Timer
from headrace.core.types import StateDict, staying
from headrace.data.flat_action import component_sizes
from headrace.data.rollout import Column, Columns, Rollout, each_column, flatten, tree_map
from headrace.envs.base import Env
from headrace.policies.base import Policy, PolicyOutput
from headrace.policies.masks import mask_of, mask_space


class Collector(Protocol):
    """Fills rollouts with steps of environments by a policy.

    Order of calls: warm_up() once, then collect() and, after each update of the policy, publish().
    """

    rollout: Rollout  # like those of collect(): for Algorithm.prepare()
    dropped_steps: int  # steps so far that are masked because their worker was too slow
    made_of: bytes  # the fragments of the last rollout, for the log; empty if they follow from the rollout's number
    stop: Callable[[], bool] | None  # called before each step in Python: if true, collect() raises Stopped
    atomic: bool  # whether state_dict() after Stopped is the state before the rollout

    @property
    def steps(self) -> int:
        """Number of steps of each environment so far, masked ones included: the counter of the actions' random
        draws."""

    def collect(self) -> Rollout:
        """The next T steps. The rollout is the collector's own; the next call overwrites it."""

    def publish(self) -> None:
        """Use the policy's present weights for collecting from now on."""

    def warm_up(self) -> None:
        """Compile whatever has to be compiled, and leave everything as it was."""

    def metrics(self) -> dict[str, float]:
        """Metrics of the environments for the last rollout: Env.metrics()."""

    def state_dict(self) -> StateDict:
        """State for load_state_dict(). Its "env" is empty if the environments cannot be saved."""

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from state_dict(), bit for bit where the environments can be saved."""

    def close(self) -> None:
        """Free what the collector holds, but not the environments it was given. A second call does nothing."""


def output_columns(rollout: Rollout) -> list[str]:
    """Columns that the policy fills: the action, and log_prob and value if the algorithm declares them."""
    return [name for name in PolicyOutput._fields if name in rollout.columns and name != "rnn_state"]


def mask_state(rnn_state: Any, valid: Tensor) -> Any:
    """The recurrent state [N, ...] after a row: zero where the row is masked, since the next one begins an episode."""
    return tree_map(lambda x: x.masked_fill(~valid.view(-1, *[1] * (x.dim() - 1)), 0), rnn_state)


class InlineCollector:
    """A Collector in the learner's process. Policy and environments take turns, and the policy is the learner's own.

    columns: those that the algorithm declares, such as log_prob and value.
    """

    dropped_steps = 0
    made_of = b""
    stop: Callable[[], bool] | None = None
    atomic = False
    __setattr__ = staying("policy", "rollout")

    def __init__(
        self,
        env: Env,
        policy: Policy,
        num_steps: int,
        columns: dict[str, Column | Columns],
        seed: int,
        timer: Timer | None = None,
    ) -> None:
        self.env, self.policy, self.seed = env, policy, seed
        self.timer = timer or Timer()
        self.rollout = env.rollout(num_steps, env.columns() | columns)
        self.rnn_state = policy.initial_state(env.num_envs)
        self.steps = 0
        self._has_mask = env.num_agents == 1 and mask_space(env.observation_space) is not None
        env.reset(self.rollout, seed)
        # views, made once: making one costs as much as a small operation
        rollout = self.rollout
        self._observation = [rollout.observation[t] for t in range(num_steps + 1)]
        names = output_columns(rollout)
        self._carried = [  # copied from the last row of a rollout to the first row of the next
            (value[0], value[-1]) for column, value in each_column(rollout.columns, rollout) if column.bootstrap
        ]
        self._outputs = [[(name, getattr(rollout, name)[t]) for name in names] for t in range(num_steps)]

    @torch.no_grad()
    def collect(self) -> Rollout:
        """The next T steps. The rollout is the collector's own; the next call overwrites it."""
        if self.steps:
            self._advance()
        self.fill(self.steps)
        if self._has_mask:
            check_masks(self.env, self.rollout)
        self.steps += self.rollout.num_steps
        return self.rollout

    def _advance(self) -> None:
        """Begin the next rollout where this one ended."""
        for first, last in self._carried:
            first.copy_(last)

    def publish(self) -> None:
        """The policy is the learner's own: nothing to do."""

    def close(self) -> None:
        """Do nothing: a collector holds only memory."""

    @torch.no_grad()
    def fill(self, first_step: int | Tensor) -> None:
        """Collect T steps from row 0 on. first_step: as `steps`; in a CUDA graph a tensor on the device."""
        steps(self, first_step)

    def warm_up(self) -> None:
        """Take T steps and undo them, if the environments are compiled for the CPU."""
        if self.env.backend == "cpu":
            before = self.state_dict()
            self.fill(self.steps)
            self.load_state_dict(before)

    def metrics(self) -> dict[str, float]:
        """See Collector."""
        return self.env.metrics()

    def _random(self, first_step: int | Tensor) -> Tensor:
        """Random draws for the actions of T steps, [T, N, num_draws]."""
        env, shape = self.env, (self.rollout.num_steps, self.env.num_envs, self.policy.num_draws)
        return rng.uniform(self.seed, rng.Purpose.ACTION, first_step, *shape, env.device, env.first_env)

    def check_stop(self) -> None:
        """Raise Stopped where the training has been stopped."""
        if self.stop is not None and self.stop():
            raise Stopped

    def act(self, t: int, random: Tensor) -> None:
        """Fill row t with the policy's outputs. random: [N, num_draws]."""
        self.check_stop()
        output = self.policy.act(self._observation[t], self.rnn_state, random)
        for name, target in self._outputs[t]:
            target.copy_(getattr(output, name))
        if "rnn_state" in self.rollout.columns:
            tree_map(lambda column, before: column[t].copy_(before), self.rollout.rnn_state, self.rnn_state)
        self.rnn_state = mask_state(output.rnn_state, self.rollout.valid[t])

    def act_for(self, rows: int | Tensor, envs: slice | Tensor, random: Tensor) -> None:
        """Fill rows of some environments with the policy's outputs. rows, envs: a row and a slice, or a row for each of
        the environments [k]. random: [T, N, num_draws]."""
        self.check_stop()
        rollout = self.rollout
        observation = tree_map(lambda x: x[rows, envs], rollout.observation)
        before = tree_map(lambda x: x[envs], self.rnn_state)
        output = self.policy.act(observation, before, random[rows, envs])
        for name in output_columns(rollout):
            getattr(rollout, name)[rows, envs] = getattr(output, name)
        if "rnn_state" in rollout.columns:
            tree_map(lambda column, x: column.__setitem__((rows, envs), x), rollout.rnn_state, before)
        after = mask_state(output.rnn_state, rollout.valid[rows, envs])
        tree_map(lambda x, part: x.__setitem__(envs, part), self.rnn_state, after)

    def evaluate_bootstrap_row(self) -> None:
        """Fill the value of the bootstrap row, if the algorithm declares values."""
        rollout = self.rollout
        if "value" in rollout.columns:
            rollout.value[-1] = self.policy.value(self._observation[-1], self.rnn_state)

    def state_dict(self) -> StateDict:
        """Counters, the bootstrap row, the recurrent state and the environments."""
        row = {
            name: tree_map(lambda x: x[-1].clone(), getattr(self.rollout, name)) for name in ("observation", "valid")
        }
        return {
            "steps": self.steps,
            "bootstrap_row": row,
            "rnn_state": tree_map(torch.clone, self.rnn_state),
            "env": self.env.state_dict(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from state_dict(), bit for bit if the environments can be saved, else with new episodes. If "env" is
        None, the state is of other environments, and only its "steps" count."""
        self.steps = state["steps"]
        if state["env"] is None:
            self.env.reset(self.rollout, rng.seed(self.seed, rng.Purpose.RESUME, self.steps))
            for name in ("observation", "valid"):
                tree_map(lambda x: x[-1].copy_(x[0]), getattr(self.rollout, name))
            return
        self.rnn_state = tree_map(lambda x: x.to(self.env.device), state["rnn_state"])
        if not state["env"] and self.steps:  # another seed: otherwise the first episodes would be repeated
            self.env.reset(self.rollout, rng.seed(self.seed, rng.Purpose.RESUME, self.steps))
        for name, row in state["bootstrap_row"].items():
            tree_map(lambda x, saved: x[-1].copy_(saved), getattr(self.rollout, name), row)
        self.env.load_state_dict(state["env"])
        if not state["env"] and self.steps:
            self.rollout.valid[-1] = False  # the next step resets: recurrent state and agent_info begin there too


class NoSteps:
    """A Collector that takes no steps. Its rollout is one masked row, with the columns of the recorded data."""

    steps = dropped_steps = 0
    made_of = b""
    stop: Callable[[], bool] | None = None
    atomic = False

    def __init__(self, env: Env, columns: dict[str, Column | Columns]) -> None:
        self.rollout = Rollout(1, 1, env.columns() | columns, env.device)

    def collect(self) -> Rollout:
        """The masked row."""
        return self.rollout

    def publish(self) -> None:
        """Do nothing: nothing collects with the policy."""

    def warm_up(self) -> None:
        """Do nothing: nothing is compiled."""

    def metrics(self) -> dict[str, float]:
        """Return no metrics."""
        return {}

    def state_dict(self) -> StateDict:
        """The entries that every collector's state has."""
        return {"steps": 0, "env": {"stepped": 0}}

    def load_state_dict(self, state: StateDict) -> None:
        """Do nothing: there is no state."""

    def close(self) -> None:
        """Do nothing: a collector holds only memory."""


def acts_as_written(collector: InlineCollector) -> bool:
    """Tell whether a collector fills rows as an InlineCollector does: neither its class nor the object overrides it."""
    methods = (
        (collector.act, InlineCollector.act),
        (collector.evaluate_bootstrap_row, InlineCollector.evaluate_bootstrap_row),
    )
    return all(getattr(own, "__func__", None) is written for own, written in methods)


def check_masks(env: Env, rollout: Rollout) -> None:
    """Raise ValueError where the action mask of a valid row allows no action. For one agent."""
    steps = rollout.num_steps
    mask = mask_of(env.observation_space, flatten(rollout.observation[:steps]))
    allowed = (
        torch.stack([part.any(0) for part in mask.split(component_sizes(env.action_space))]).all(0).view(steps, -1)
    )
    wrong = (~allowed & rollout.valid[:steps]).nonzero()
    if len(wrong):
        raise ValueError(
            f"the action mask of {env.name} allows no action in environment {env.first_env + int(wrong[0, 1])}, in a "
            "state that is not final: allow one, or end the episode there"
        )


@fused("collector.steps", "headrace.bindings.collecting.compiled_collecting")
def steps(collector: InlineCollector, first_step: int | Tensor) -> None:
    """Take T steps from row 0: policy and environments take turns. first_step: as in InlineCollector.fill()."""
    timer = collector.timer
    with timer("inference"):
        random = collector._random(first_step)
    for t in range(collector.rollout.num_steps):
        with timer("inference"):
            collector.act(t, random[t])
        with timer("env"):
            collector.env.step(collector.rollout, t)
    with timer("inference"):
        collector.evaluate_bootstrap_row()
