"""The compiled loop of off-policy algorithms with losses and networks of users': rows, weights and metrics are those of
plain functions on the same numbers."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from typing import Any

import gymnasium
import pytest
import torch
from helpers.same import flat_weights
from torch import Tensor, nn

import headrace as hr
from headrace import Trainer
from headrace.algorithms import dqn, sac, td3, tqc
from headrace.algorithms.discrete import c51
from headrace.algorithms.off_policy import learn_from_replay
from headrace.bindings.collecting import compiled_collecting, compiled_replay
from headrace.core.fused import kernel_of, plain_only
from headrace.data.priorities import PrioritizedReplay
from headrace.parallel import learning_collector
from headrace.policies.actor_q import ActorQ

SMALL = {
    **{"learning_starts": 30, "hidden": (16, 16), "buffer_size": 120, "batch_size": 24, "schedule": "constant"},
    "normalize_observation": False,
}
RUN = {"num_envs": 2, "total_steps": 10**6, "seed": 3, "threads": 1, "time_limit": 17}


def of_sac(networks: Any, batch: Any, config: Any) -> tuple[Tensor, dict[str, Tensor]]:
    loss, found = sac.critic_loss(networks, batch, config)
    return 1.5 * loss, found | {"largest": batch["reward"].square() @ batch["weight"]}


def of_td3(networks: Any, batch: Any, config: Any) -> tuple[Tensor, dict[str, Tensor]]:
    loss, found = td3.actor_loss(networks, batch, config)
    return loss, found | {"seen": batch["observation"].square().sum(1) @ batch["weight"]}


def of_dqn(networks: Any, batch: Any, config: Any) -> tuple[Tensor, dict[str, Tensor]]:
    loss, found = dqn.dqn_loss(networks, batch, config)
    values = networks.policy(batch["observation"])
    term = 0.1 * (values.logsumexp(0) @ batch["weight"])
    return loss + term, found | {"term": term}


EXPLORATION = {"exploration_initial": 0.2, "exploration_final": 0.2, "target_interval": 3}
CASES: dict[str, tuple[type, dict[str, Any], str, dict[str, Any]]] = {
    "sac": (sac.SAC, {"critic_loss": of_sac}, "Pendulum-v1", {"batch_size": 70}),
    "tqc": (tqc.TQC, {"actor_loss": tqc.actor_loss}, "Pendulum-v1", {"critic_hidden": (16, 16), "critics": 2}),
    "td3": (td3.TD3, {"actor_loss": of_td3}, "Pendulum-v1", {"n_steps": 3}),
    "dqn": (dqn.DQN, {"loss": of_dqn}, "CartPole-v1", {"prioritized": False, **EXPLORATION}),
    "prioritised dqn": (
        *(dqn.DQN, {"loss": of_dqn}, "CartPole-v1"),
        {"prioritized": True, "n_steps": 3, "priority_beta": 1.0, **EXPLORATION},
    ),
    "rainbow": (
        *(c51.C51, {}, "CartPole-v1"),
        {"noisy": 0.5, "num_atoms": 7, "prioritized": True, "priority_beta": 1.0, "double": True, "dueling": True},
    ),
}


class Block(nn.Module):
    """Replacement for an ActorQ's MLP."""

    def __init__(self, seen: int, width: int) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(seen, width), nn.LayerNorm(width), nn.Linear(width, width)
        self.norms = ()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return x + torch.tanh(self.second(self.norm(x)))


class OwnActor(ActorQ):
    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        torch.manual_seed(0)
        self.actor = Block(self.encoder.size, self.hidden[-1])


class WithOwnActor(sac.SAC):
    @classmethod
    def make_policy(cls, config: Any, observation_space: Any, action_space: Any, seed: int) -> ActorQ:
        return OwnActor(observation_space, action_space, config.hidden, seed=seed)


CASES["own network"] = (WithOwnActor, {}, "Pendulum-v1", {})


def trainer_of(name: str, backend: str = "auto", **settings: Any) -> Any:
    kind, own, env, case = CASES[name]
    losses = {label: staticmethod(loss) for label, loss in own.items()}
    config = dataclasses.replace(kind.config, **SMALL | case | settings)  # type: ignore[attr-defined]
    with closing(hr.make_vec(env, 2)) as spaces:
        seen, acts = spaces.single_observation_space, spaces.single_action_space
    algorithm = type("Own", (kind,), losses).build(config, seen, acts, 3, "cpu")
    return Trainer(algorithm, env, backend=backend, **RUN)


def trained(name: str, iterations: int = 40, backend: str = "auto", **settings: Any) -> tuple[Any, dict[str, float]]:
    trainer = trainer_of(name, backend, **settings)
    while trainer.algorithm.iteration < iterations:
        result = trainer.iterate()
    trainer.close()
    return trainer, result.metrics


def columns(trainer: Any) -> dict[str, Tensor]:
    return dict(trainer.algorithm.replay._stored())


@pytest.mark.parametrize("name", CASES)
def test_the_loop_learns_what_plain_functions_learn(name: str) -> None:
    settings = {"num_steps": 8, "train_freq": 2, "gradient_steps": 1}
    trainer, metrics = trained(name, 20, **settings)
    assert kernel_of(learn_from_replay, trainer.algorithm, 1) is compiled_replay.learn
    with plain_only():
        plain, of_plain = trained(name, 20, **settings)
    assert trainer.algorithm.updates == plain.algorithm.updates >= 5
    torch.testing.assert_close(flat_weights(trainer), flat_weights(plain), rtol=1e-4, atol=2e-5)
    for key, value in of_plain.items():
        assert metrics[key] == pytest.approx(value, rel=1e-3, abs=1e-4), key
    for (path, column), other in zip(columns(trainer).items(), columns(plain).values(), strict=True):
        assert torch.allclose(column.float(), other.float(), atol=1e-3), path
    replay = trainer.algorithm.replay
    if isinstance(replay, PrioritizedReplay):
        torch.testing.assert_close(replay.tree, plain.algorithm.replay.tree, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("backend", ["auto", "inline"])
@pytest.mark.parametrize("name", CASES)
def test_learning_while_collecting_is_what_short_rollouts_learn(name: str, backend: str) -> None:
    """Rows and weights with train_freq 2 have the bits of rollouts of 2 steps; the ring was overwritten."""
    short, _ = trained(name, 60, backend, num_steps=2, gradient_steps=3)
    long, _ = trained(name, 60, backend, num_steps=20, train_freq=2, gradient_steps=3)
    assert short.algorithm.updates == long.algorithm.updates > 0
    assert torch.equal(flat_weights(short), flat_weights(long))
    assert all(torch.equal(column, columns(long)[path]) for path, column in columns(short).items())
    for name, optimizer in short.algorithm.optimizers.items():
        assert optimizer.steps == long.algorithm.optimizers[name].steps


def test_the_loop_acts_with_an_own_network_by_a_program() -> None:
    trainer = trainer_of("own network", num_steps=20, train_freq=2)
    for _ in range(3):
        trainer.iterate()
    assert isinstance(compiled_replay._loops.last(trainer.collector).rows, compiled_collecting.Rows)
    trainer.close()


@pytest.mark.parametrize("train_freq", [0, 2])
@pytest.mark.parametrize("changed", ["loss", "tau", "global", "learn"])
def test_what_is_changed_in_mid_training_takes_effect(
    changed: str, train_freq: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def weights_after(plain: bool) -> Tensor:
        trainer = trainer_of("sac", num_steps=8, train_freq=train_freq, gradient_steps=1)
        with plain_only(plain):
            for iteration in range(9):
                if iteration == 5:
                    algorithm = trainer.algorithm
                    if changed == "loss":
                        algorithm.critic_loss = lambda *given: (0.1 * sac.critic_loss(*given)[0], {})
                    elif changed == "tau":
                        algorithm.config = dataclasses.replace(algorithm.config, tau=0.9)
                    elif changed == "global":
                        monkeypatch.setattr(sac, "keep_features", lambda x: {"reward": 0 * x[:, 0]})
                    else:
                        algorithm.learn = lambda batches, random: {}
                trainer.iterate()
            trainer.close()
        monkeypatch.undo()
        return flat_weights(trainer)

    found, plain = weights_after(False), weights_after(True)
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=2e-5)


def test_environments_of_gymnasium() -> None:
    class Own(sac.SAC):
        critic_loss = staticmethod(of_sac)

    def run(plain: bool) -> Tensor:
        env = gymnasium.make("Pendulum-v1")
        config = dataclasses.replace(sac.SAC.config, **SMALL | {"num_steps": 10, "train_freq": 1})
        algorithm = Own.build(config, env.observation_space, env.action_space, 3, "cpu")
        with plain_only(plain):
            trainer = Trainer(algorithm, lambda: gymnasium.make("Pendulum-v1"), **RUN)
            for _ in range(3):
                trainer.iterate()
            served = kernel_of(learning_collector.steps, trainer.collector, torch.zeros(10, 2, 2))
            assert served is (None if plain else compiled_replay.collect)
            trainer.close()
        return flat_weights(trainer)

    torch.testing.assert_close(run(False), run(True), rtol=1e-4, atol=2e-5)
