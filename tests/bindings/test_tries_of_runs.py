"""Findings of a run about its compiled losses are kept when it is resumed, and all learners decide the same."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest
import torch
from helpers.tiny import TINY, Walk
from torch import Tensor, nn

import headrace as hr
from headrace.algorithms import ppo
from headrace.bindings.compiled import compiled_acting, compiled_learning, compiled_losses
from headrace.bindings.compiled.loss_tries import MOST, RunTries, Tries
from headrace.bindings.compiled.objective_learner import ObjectiveLearner
from headrace.core import fused
from headrace.policies.actor_critic import ActorCritic
from headrace.training.trainer import Trainer
from tests.bindings.kept_losses import Disk
from tests.bindings.test_compiled_losses_kept import agrees
from tests.parallel.test_learners import check_equal

UPDATES = 9


class Weighted(ActorCritic):
    """A policy with numbers that its loss reads."""

    def __init__(self, *spaces: Any, **settings: Any) -> None:
        super().__init__(*spaces, **settings)
        self.mode, self.beta = 0, 1.0


class Changing(ppo.PPO):
    """PPO with a loss that reads a whole number, or an annealed one, of the policy."""

    changes: ClassVar[str] = "mode"

    @staticmethod
    def loss(policy: Any, batch: Any, config: Any) -> tuple[Tensor, dict[str, Tensor]]:
        value, metrics = ppo.ppo_loss(policy, batch, config)
        return value * (1 + policy.mode % 3) * policy.beta, metrics

    def update(self, rollout: Any, progress: float) -> dict[str, Tensor]:
        self.change(self.iteration)
        return super().update(rollout, progress)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.change(max(0, self.iteration - 1))  # which are no tensors

    def change(self, number: int) -> None:
        if self.changes == "mode":
            self.policy.mode = number
        elif self.changes == "beta":
            self.policy.beta = 0.9**number


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "_said", set())
    forget()


def forget() -> None:
    """Know no compiled loss, as a new process."""
    compiled_learning._compiled.cache_clear()
    compiled_acting.acting.cache_clear()
    compiled_acting.evaluating.cache_clear()
    compiled_losses._compared.clear()


def trainer(kind: type[ppo.PPO]) -> Trainer:
    forget()
    config = ppo.PPOConfig(**{name: x for name, x in TINY.items() if name not in ("progress", "threads")})
    world = Walk()
    policy = Weighted(world.observation_space, world.action_space, hidden=(8,))
    return Trainer(kind(policy, config), world, progress="none", threads=1)


def weights(kind: type[ppo.PPO], interrupted: int | None = None) -> tuple[Tensor, dict[str, Any]]:
    """The weights after some updates, and what the run knows of the loss; interrupted: the update after which another
    trainer goes on."""
    training = trainer(kind)
    for number in range(UPDATES):
        if number == interrupted:
            state = training.state_dict()
            state["compiled"] = json.loads(json.dumps(state["compiled"]))
            training.close()
            training = trainer(kind)
            training.load_state_dict(state)
        training.iterate()
    (found,) = [own[-1] for name, own in training.state_dict()["compiled"].items() if name.startswith("Changing.loss")]
    training.close()
    return training.algorithm.optimizer.flat.clone(), found


@pytest.mark.parametrize("interrupted", [2, 5, 7])  # in the middle of the count, before and after it is given up
def test_a_loss_is_given_up_at_the_same_update_after_resuming(
    interrupted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_losses, "TRIES", UPDATES)
    always, found = weights(Changing)
    assert not found["given_up"] and found["made"] == UPDATES
    monkeypatch.setattr(compiled_losses, "TRIES", 6)
    straight, known = weights(Changing)
    assert "because of policy.mode" in known["given_up"] and known["made"] == 6 and not straight.equal(always)
    resumed, again = weights(Changing, interrupted)
    assert resumed.equal(straight) and again == known


class Constant(Changing):
    changes = "nothing"


@pytest.mark.parametrize("interrupted", [3, 7])
def test_a_loss_is_compared_again_and_refused_at_the_same_call(
    interrupted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    always, found = weights(Constant)
    assert not found["refused"]

    def differs(self: Any, program: Any, arguments: Any) -> str | None:
        return "it is wrong there" if program.use.calls == 5 else None

    monkeypatch.setattr(compiled_losses, "LOOK_AGAIN", 5)
    monkeypatch.setattr(compiled_losses.CompiledLoss, "_differs_later", differs)
    straight, known = weights(Constant)
    assert [*known["refused"].values()] == ["it is wrong there"] and not straight.equal(always)
    resumed, again = weights(Constant, interrupted)
    assert resumed.equal(straight) and again["refused"] == known["refused"]
    other, _ = weights(Constant)  # no other run is refused what this one was
    assert other.equal(straight)


class Annealed(Changing):
    changes = "beta"


@pytest.mark.parametrize("interrupted", [1, 6])
def test_an_annealed_number_of_a_policy_is_an_input_once_it_has_changed(
    interrupted: int, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_losses, "TRIES", 3)
    straight, known = weights(Annealed)
    assert known["varying"] == ["policy.beta"] and known["made"] == 2 and not known["given_up"]
    with fused.plain_only():
        plain = trainer(Annealed)
        for _ in range(UPDATES):
            plain.iterate()
        plain.close()
    torch.testing.assert_close(straight, plain.algorithm.optimizer.flat, rtol=1e-3, atol=1e-5)
    traces = disk.traces
    resumed, again = weights(Annealed, interrupted)
    assert resumed.equal(straight) and again == known and disk.traces == traces


class Scaled(nn.Module):
    """A network that is scaled, and has a slope."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale, self.slope, self.limit = nn.Linear(3, 2), 1.0, 0.1, 4.0

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.scale


def scaled(net: Any, x: Tensor, coef: float) -> Tensor:
    return coef * net(x).square().mean()


def chooses(net: Any, x: Tensor, coef: float) -> Tensor:
    return coef * net(x).square().mean() * (2 if net.scale > 0.5 else 1)


def takes_numbers_alone(net: Any, x: Tensor, coef: float) -> Tensor:
    return coef * nn.functional.leaky_relu(net.inner(x), net.scale).mean()


@pytest.mark.parametrize(
    ("loss", "traces"),
    [(scaled, 2), (chooses, 7), (takes_numbers_alone, 7)],
    ids=["computes", "chooses", "takes numbers alone"],
)
def test_numbers_that_change_are_inputs_where_they_can_be(loss: Callable[..., Tensor], traces: int, disk: Disk) -> None:
    step, net, x = disk.compile(loss), Scaled(), torch.randn(20, 3)
    for number in range(6):
        net.scale = 1.0 - 0.15 * number
        assert agrees(step, net, x, 1.0) is None
        assert agrees(step, net, x, 0.3 + number) is None  # an argument stays an input
    assert disk.traces == traces and net.scale == 0.25


def test_another_attribute_than_the_one_that_changed_before_is_looked_at(disk: Disk) -> None:
    def loss(net: Any, x: Tensor) -> Tensor:
        return net(x).clamp(max=net.limit).square().mean()

    step, net, x = disk.compile(loss), Scaled(), 3 * torch.randn(20, 3)
    for name, value in (("scale", 2.0), ("scale", 3.0), ("limit", 1.0), ("scale", 4.0), ("limit", 0.5)):
        setattr(net, name, value)
        assert agrees(step, net, x) is None
    assert step._tries[net].varying == {"net.scale", "net.limit"}
    net.scale = 2  # no float
    assert agrees(step, net, x) is None


def test_what_is_known_is_bounded_and_modules_have_their_order() -> None:
    run, tries = RunTries(), Tries()
    for number in range(2 * MOST):
        tries.use(str(number)).calls = number
        tries.refuse(str(number), "wrong")
    assert [*tries.known] == [*tries.refused] == [str(n) for n in range(MOST, 2 * MOST)]
    first, second = run.take("loss"), run.take("loss")
    first.calls, second.calls = 3, 4
    other = RunTries()
    early = other.take("loss")  # by a warm-up, before the state is known
    other.load_state_dict(json.loads(json.dumps(run.state_dict())))
    assert early.calls == 3 and other.take("loss").calls == 4 and other.take("loss").calls == 0


REPLAY = """
import torch
from torch import nn
import headrace as hr
from headrace.algorithms import dqn

class Block(nn.Module):
    def __init__(self, seen, width):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(seen, width), nn.LayerNorm(width), nn.Linear(width, width)
        self.norms = ()

    def forward(self, x):
        x = self.first(x)
        return x + torch.tanh(self.second(self.norm(x)))

class Actor(hr.ActorQ):
    def __init__(self, observation_space, action_space, hidden=(16,), seed=0, deterministic=False, critics=2):
        super().__init__(
            observation_space, action_space, hidden, seed=seed, deterministic=deterministic, critics=critics
        )
        torch.manual_seed(0)
        self.actor = Block(self.encoder.size, self.hidden[-1])

class DQN(dqn.DQN):
    @staticmethod
    def loss(networks, batch, config):
        loss, found = dqn.dqn_loss(networks, batch, config)
        return 1.5 * loss, found

DQNConfig = dqn.DQNConfig
"""


@pytest.mark.parametrize("name", ["own network", "own loss"])
def test_compiled_replay_losses_of_two_learners_are_those_of_one_with_two_shards(
    name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text(REPLAY)
    calls, learn = list[int](), ObjectiveLearner.learn

    def counted(*arguments: Any) -> Any:
        calls.append(1)
        return learn(*arguments)

    monkeypatch.setattr(ObjectiveLearner, "learn", counted)
    options: dict[str, Any] = {"num_envs": 5, "num_steps": 4, "learning_starts": 60, "buffer_size": 1000}
    options |= {"batch_size": 33, "hidden": (16,), "progress": "none"}
    own = tmp_path / "own.py"
    case = ("sac", "Pendulum-v1", options | {"policy": f"{own}:Actor"})
    if name == "own loss":
        case = (f"{own}:DQN", "CartPole-v1", options)
    check_equal(case, 2)
    assert len(calls) > 20  # of both shards, and of rank 0


OF_ONE = """
import os
from headrace.algorithms import ppo
from headrace.policies.actor_critic import ActorCritic

PPOConfig = ppo.PPOConfig

class Own(ActorCritic):
    pass

class PPO(ppo.PPO):
    @classmethod
    def make_policy(cls, config, observation_space, action_space, seed):
        return Own(observation_space, action_space, hidden=config.hidden, seed=seed)

    @staticmethod
    def loss(policy, batch, config):
        if policy is None:
            import of_none  # which is not loaded: so the loss is kept for no other process
        value, metrics = ppo.ppo_loss(policy, batch, config)
        if os.getpid() != int(os.environ["COMPILES"]) and value.item() > 1e9:
            value = value * 2
        return value, metrics
"""


def test_where_one_learner_does_not_compile_a_loss_none_does(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "of_one.py").write_text(OF_ONE)
    options: Mapping[str, Any] = {"num_envs": 8, "num_steps": 16, "minibatch_size": 64, "hidden": (8,), "learners": 2}

    def learned(compiles: int) -> Tensor:
        monkeypatch.setenv("COMPILES", str(compiles))
        monkeypatch.setattr(fused, "_said", set())
        training = hr.Trainer(f"{tmp_path / 'of_one.py'}:PPO", "CartPole-v1", progress="none", **options)
        try:
            for _ in range(4):
                training.iterate()
            return training.algorithm.optimizer.flat.clone()
        finally:
            training.close()

    none = learned(-1)
    assert "chooses by the data" in capsys.readouterr().err
    one = learned(os.getpid())
    assert "another learner does not compile it" in capsys.readouterr().err
    assert one.equal(none)
