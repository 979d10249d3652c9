"""Collecting in the learner's own process: policy and environments take turns on one rollout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headrace.core import rng
from headrace.core.fused import fused
from headrace.core.timer import Timer
from headrace.data.rollout import Column, Columns, Rollout, tree_map
from headrace.envs.base import Env
from headrace.policies.base import Policy, PolicyOutput


def output_columns(rollout: Rollout) -> list[str]:
    """The columns that a decision fills: the action, and of log_prob and value those the algorithm declared."""
    return [name for name in PolicyOutput._fields if name in rollout.columns and name != "rnn_state"]


def mask_state(rnn_state: Any, valid: Tensor) -> Any:
    """Memory [N, ...] after a row: of environments whose row is dead nothing, for the next begins an episode."""
    return tree_map(lambda x: x * valid.view(-1, *[1] * (x.dim() - 1)), rnn_state)


class Collector:
    """An env, a policy and the rollout they fill. Inline: the policy is the learner's own module, not a copy.

    columns: what the algorithm declares, such as log_prob and value. `steps` counts those of each env, dead rows
    included: it is the counter behind the actions' randomness.
    """

    dropped_steps = (
        0  # rows so far that are dead because nobody waited for them: see headrace.parallel.collection_modes
    )

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
        env.reset(self.rollout, seed)
        # views, made once: making one costs as much as a small operation
        rollout = self.rollout
        self._observation = [rollout.observation[t] for t in range(num_steps + 1)]
        names = output_columns(rollout)
        self._outputs = [[(name, getattr(rollout, name)[t]) for name in names] for t in range(num_steps)]

    @torch.no_grad()
    def collect(self) -> Rollout:
        """The next T steps. The rollout is the collector's own and is overwritten by the next call."""
        if self.steps:
            self.rollout.continue_from(self.rollout)
        self.fill(self.steps)
        self.steps += self.rollout.num_steps
        return self.rollout

    @torch.no_grad()
    def fill(self, first_step: int | Tensor) -> None:
        """T steps from the row 0 that is there. first_step: as `steps`; in a graph a tensor on the device."""
        with self.timer("inference"):
            random = self._random(first_step)
        steps(self, random)

    def warm_up(self) -> None:
        """Take T steps and take them back, so that whatever must be compiled is compiled; where the worlds are not
        compiled for the CPU, nothing is."""
        if self.env.backend == "cpu":
            before = self.state_dict()
            self.fill(self.steps)
            self.load_state_dict(before)

    def _random(self, first_step: int | Tensor) -> Tensor:
        """Draws for the actions of T steps, [T, N, num_draws]."""
        env, draws = self.env, self.policy.num_draws
        return rng.uniform(
            self.seed, rng.Purpose.ACTION, first_step, self.rollout.num_steps, env.num_envs, draws, env.device
        )

    def act(self, t: int, random: Tensor) -> None:
        """Fill row t with what the policy decides; noise [N, num_draws]."""
        decision = self.policy.act(self._observation[t], self.rnn_state, random)
        for name, target in self._outputs[t]:
            target.copy_(getattr(decision, name))
        if "rnn_state" in self.rollout.columns:
            tree_map(lambda column, before: column[t].copy_(before), self.rollout.rnn_state, self.rnn_state)
        self.rnn_state = mask_state(decision.rnn_state, self.rollout.valid[t])

    def evaluate_edge(self) -> None:
        """Fill the row after the last with its value, where the algorithm asks for values."""
        rollout = self.rollout
        if "value" in rollout.columns:
            rollout.value[-1] = self.policy.value(self._observation[-1], self.rnn_state)

    def state_dict(self) -> dict[str, Any]:
        """What the next collect() goes on from: counters, the edge row, the worlds."""
        edge = {
            name: tree_map(lambda x: x[-1].clone(), getattr(self.rollout, name)) for name in ("observation", "valid")
        }
        return {
            "steps": self.steps,
            "edge": edge,
            "rnn_state": tree_map(torch.clone, self.rnn_state),
            "env": self.env.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from state_dict(), bit for bit where the worlds can be saved."""
        self.steps, self.rnn_state = state["steps"], state["rnn_state"]
        for name, row in state["edge"].items():
            tree_map(lambda x, saved: x[-1].copy_(saved), getattr(self.rollout, name), row)
        self.env.load_state_dict(state["env"])


@fused("collector.steps", "headrace.bindings.collector_cpu")
def steps(collector: Collector, random: Tensor) -> None:
    """T steps from row 0: policy and environments take turns. noise: [T, N, num_draws]."""
    timer = collector.timer
    for t in range(collector.rollout.num_steps):
        with timer("inference"):
            collector.act(t, random[t])
        with timer("env"):
            collector.env.step(collector.rollout, t)
    with timer("inference"):
        collector.evaluate_edge()
