"""Policies that users derive from Policy: what inputs() may return, and the recurrent state."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import pytest
import torch
from torch import Tensor, nn

import headrace as hr
from headrace.algorithms.ppo import PPO, PPOConfig
from headrace.algorithms.vtrace.impala import IMPALA
from headrace.data.minibatches import minibatches
from headrace.data.rollout import Column, Group, tree_map
from headrace.parallel.collector import InlineCollector
from headrace.policies.base import PolicyOutput
from headrace.policies.heads import action_head

SETTINGS: dict[str, Any] = {"num_steps": 16, "minibatch_size": 32, "epochs": 2, "num_envs": 8, "progress": "none"}


class Pair(NamedTuple):
    observation: Tensor
    state: Tensor


class Nested(NamedTuple):
    pair: Pair
    more: dict[str, Any]


FORMS = {  # what inputs() returns -> how its parts are read
    "group": (lambda o, s: Group({"observation": o, "state": s}), lambda x: (x.observation, x.state)),
    "dict": (lambda o, s: {"observation": o, "state": s}, lambda x: (x["observation"], x["state"])),
    "named": (Pair, lambda x: (x.observation, x.state)),
    "tuple": (lambda o, s: (o, s), lambda x: x),
    "list": (lambda o, s: [o, s], lambda x: x),
    "nested": (lambda o, s: Nested(Pair(o, o), {"a": [s]}), lambda x: (x.pair.state, x.more["a"][0])),
}


class Remembering(hr.Policy):
    """A vanilla recurrent network, of rows alone."""

    recurrent = "gru"
    form = "dict"

    def __init__(self, observation_space: Any, action_space: Any, seed: int = 0) -> None:
        super().__init__()
        self._keep(locals())
        self.observation_space, self.action_space = observation_space, action_space
        generator = torch.Generator().manual_seed(seed)
        self.head = action_head(action_space, "auto")
        self.num_draws, self.state_width = self.head.num_draws, 5
        self.cell, self.out = nn.Linear(observation_space.shape[0] + 5, 5), nn.Linear(5, self.head.num_parameters + 1)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.4, 0.4, generator=generator)

    def outputs(self, state: Tensor) -> tuple[Any, Tensor]:
        found = self.out(state).t()
        return self.head(found[:-1]), found[-1]

    def act(self, observation: Tensor, rnn_state: Any, random: Tensor | None) -> PolicyOutput:
        before = self.initial_state(len(observation)) if rnn_state is None else rnn_state
        after = torch.tanh(self.cell(torch.cat((observation, before), 1)))
        distribution, value = self.outputs(after)
        action = distribution.mode() if random is None else distribution.sample(random)
        return PolicyOutput(action, distribution.log_prob(action), value, after)

    def value(self, observation: Tensor, rnn_state: Any = None) -> Tensor:
        return self.act(observation, rnn_state, None).value  # type: ignore[no-any-return]

    def inputs(self, rollout: Any) -> Any:
        return self.rows(FORMS[self.form][0](rollout.observation[: rollout.num_steps], rollout.rnn_state))

    def forward(self, inputs: Any) -> tuple[Any, Tensor]:
        return self.outputs(torch.tanh(self.cell(torch.cat(tuple(FORMS[self.form][1](inputs)), 1))))


def of_form(form: str) -> type[Remembering]:
    return type(f"Of_{form}", (Remembering,), {"form": form, "__module__": __name__})


def weights_after(policy: type[Remembering], iterations: int = 3) -> Tensor:
    trainer = hr.Trainer("ppo", "CartPoleHidden", policy=policy, seed=2, **SETTINGS)
    for _ in range(iterations):
        trainer.iterate()
    found = torch.cat([p.detach().flatten().clone() for p in trainer.policy.parameters()])
    trainer.close()
    return found


@pytest.mark.parametrize("form", [*FORMS])
def test_inputs_may_be_any_kind_of_container(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = weights_after(of_form(form))
    assert "runs in plain PyTorch" not in capsys.readouterr().err
    torch.testing.assert_close(found, weights_after(of_form("group")))


@pytest.mark.parametrize("form", [*FORMS])
def test_minibatches_keep_the_kind_of_inputs(form: str) -> None:
    make, read = FORMS[form]
    seen, state = torch.randn(12, 3), torch.randn(12, 5)
    order = torch.randperm(12)
    (first, second) = minibatches({"inputs": make(seen, state)}, order, 2)  # type: ignore[operator]
    for part, rows in ((first["inputs"], order[:6]), (second["inputs"], order[6:])):
        assert type(part) is type(make(seen, state))  # type: ignore[operator]
        torch.testing.assert_close(tuple(read(part)), (seen[rows], state[rows]))  # type: ignore[operator]


def test_a_map_takes_further_trees_of_the_same_kind() -> None:
    a, b = ({"x": (torch.full((2,), v), [torch.ones(1)])} for v in (1.0, 2.0))
    found = tree_map(torch.add, a, b)  # type: ignore[type-var]
    assert found["x"][0].tolist() == [3.0, 3.0] and isinstance(found["x"][1], list)
    with pytest.raises(ValueError, match="shorter"):
        tree_map(torch.add, (torch.ones(1), torch.ones(1)), (torch.ones(1),))  # type: ignore[type-var]


class Forgetful(Remembering):
    def __init__(self, observation_space: Any, action_space: Any, seed: int = 0, width: int = 0) -> None:
        super().__init__(observation_space, action_space, seed)
        self.state_width = width


class Wider(Forgetful):
    def columns(self) -> dict[str, Any]:
        return {"rnn_state": Column((5,))}


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Forgetful, "Forgetful has recurrent='gru' and a state_width of 0: set self.state_width"),
        (Wider, r"columns\(\) of Wider has an rnn_state of shape \(5,\) .* state_width is 0: set self.state_width"),
    ],
)
def test_a_recurrent_state_without_a_width_is_an_error(policy: type[Forgetful], message: str) -> None:
    spaces = gymnasium.spaces.Box(-1.0, 1.0, (2,)), gymnasium.spaces.Discrete(2)
    with pytest.raises(ValueError, match=message):
        PPO(policy(*spaces), PPOConfig())
    PPO(policy(*spaces, width=5), PPOConfig())


def test_the_value_after_a_rollout_is_that_of_its_state() -> None:
    env = hr.make("CartPoleHidden", 64)
    policy = Remembering(env.observation_space, env.action_space)
    collector = InlineCollector(env, policy, 30, IMPALA(policy).columns(), seed=1)
    for _ in range(4):
        rollout = collector.collect()
        assert not rollout.valid[29:].all()  # some episodes end there
        torch.testing.assert_close(policy.bootstrap_value(rollout), rollout.value[-1])


@pytest.mark.parametrize("length", [1, 4])
def test_rows_of_a_sequence_follow_each_other(length: int) -> None:
    policy = Remembering(gymnasium.spaces.Box(-1.0, 1.0, (2,)), gymnasium.spaces.Discrete(2))
    policy.sequence_length = length
    column = torch.arange(24.0).view(8, 3)  # [T, N]
    expected = torch.cat([column[t : t + length, n] for t in range(0, 8, length) for n in range(3)])
    torch.testing.assert_close(policy.rows({"x": column})["x"], expected)
