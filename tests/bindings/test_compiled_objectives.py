"""Learning from the replay buffer with losses and networks of users': compiled, it is plain PyTorch within rounding."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headrace import Trainer
from headrace.algorithms import crossq, ddpg, dqn, objectives, sac, td3, tqc
from headrace.algorithms.objectives import TD_ERROR, take_steps
from headrace.bindings.compiled import compiled_objectives
from headrace.core import fused
from headrace.core.fused import kernel_of, plain_only
from headrace.data.replay import Batch
from headrace.data.spaces import Box, Discrete
from headrace.policies.actor_q import ActorQ

STEPS, SEEN, ACTIONS = 4, 5, 2


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reason is printed once in a process."""
    monkeypatch.setattr(fused, "_said", set())


KINDS = {"sac": sac.SAC, "tqc": tqc.TQC, "td3": td3.TD3, "ddpg": ddpg.DDPG, "crossq": crossq.CrossQ, "dqn": dqn.DQN}


def config_of(kind: type, **settings: Any) -> Any:
    """Small networks."""
    fields = {field.name for field in dataclasses.fields(kind.config)}  # type: ignore[attr-defined]
    small = {"hidden": (16, 16)} | ({"critic_hidden": (16, 16)} if "critic_hidden" in fields else {})
    return dataclasses.replace(kind.config, **small | settings)  # type: ignore[attr-defined]


def made(kind: type, own: dict[str, Any] | None = None, **settings: Any) -> Any:
    """An algorithm with losses of its own, and the policy that its seed gives."""
    own = {name: staticmethod(loss) for name, loss in (own or {}).items()}
    space = Discrete(3) if issubclass(kind, dqn.DQN) else Box(-2, 2, (ACTIONS,))
    algorithm = type("Own", (kind,), own).build(config_of(kind, **settings), Box(-1, 1, (SEEN,)), space, 0, "cpu")
    algorithm.rows_per_iteration = 1
    return algorithm


def minibatches(algorithm: Any, rows: int, seed: int = 0) -> tuple[Batch, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = STEPS, rows
    draw = partial(torch.rand, generator=generator)
    choices = isinstance(algorithm, dqn.DQN)
    action = (draw(shape) * 3).int() if choices else draw(*shape, ACTIONS) * 4 - 2
    columns = draw(*shape, SEEN) - 0.5, action, draw(shape), draw(shape), draw(*shape, SEEN) - 0.5
    return Batch(*columns, (draw(shape) > 0.1).float(), torch.zeros(shape, dtype=torch.int64)), draw(
        *shape, algorithm.num_draws()
    )


def serves(algorithm: Any, batches: Batch, random: Tensor) -> Any:
    given, networks = algorithm.objectives()
    return kernel_of(take_steps, given, networks, batches, random, algorithm.config)


def agree(algorithm: Any, plain: Any, rows: int = 33, calls: int = 3, tolerance: float = 2e-6) -> None:
    """Gradient steps of both, on the same minibatches."""
    for call in range(calls):
        batches, random = minibatches(algorithm, rows, seed=call)
        assert serves(algorithm, batches, random) is compiled_objectives.take_steps
        found = algorithm.learn(batches, random)
        with plain_only():
            wanted = plain.learn(batches, random)
    assert found.keys() == wanted.keys()
    for name, x in wanted.items():
        assert torch.allclose(found[name], x, rtol=1e-4, atol=1e-5), name
    for name, optimizer in algorithm.optimizers.items():
        other = plain.optimizers[name]
        assert optimizer.steps == other.steps and not optimizer.gradient.any()
        for one, two in ((optimizer.flat, other.flat), (optimizer.mean, other.mean)):
            assert (one - two).abs().max() < tolerance, name
    for name, buffer in algorithm.buffers.items():
        assert (buffer - plain.buffers[name]).abs().max() < tolerance, name


def own_losses(kind: str) -> dict[str, Any]:
    """The algorithm's own losses, which is enough for its kernel to step back."""
    module = {"sac": sac, "tqc": tqc, "td3": td3, "ddpg": ddpg, "crossq": crossq}.get(kind)
    return {"loss": dqn.dqn_loss} if module is None else {"critic_loss": module.critic_loss}  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_steps_are_those_of_plain_pytorch(kind: str) -> None:
    agree(*(made(KINDS[kind], own_losses(kind)) for _ in range(2)))


def penalised(networks: Any, batch: Any, config: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """SAC's critics, kept small."""
    loss, found = sac.critic_loss(networks, batch, config)
    policy = networks.policy
    values = policy.critics(policy.encoder(batch["observation"]), policy.normalize_action(batch["action"]))
    penalty = (values.square() @ batch["weight"]).sum()
    return loss + 0.01 * penalty, found | {"penalty": penalty}


def cloning(networks: Any, batch: Any, config: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """TD3+BC's actor (Fujimoto & Gu 2021, eq. 5)."""
    policy = networks.policy
    observation = objectives.features(policy, batch)
    action = policy.best_action(observation)
    value = policy.critics(observation, action)[0]
    scale = 2.5 / (value.detach().abs() @ batch["weight"])
    apart = (action - policy.normalize_action(batch["action"])).square().mean(1)
    loss = (apart - scale * value) @ batch["weight"]
    return loss, {"actor_loss": loss, "apart": apart @ batch["weight"]}


def conservative(networks: Any, batch: Any, config: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """DQN with the term of Kumar et al. 2020, eq. 4."""
    loss, found = dqn.dqn_loss(networks, batch, config)
    values = networks.policy(batch["observation"])
    taken = networks.policy.action_value(batch["observation"], batch["action"])
    term = (values.logsumexp(0) - taken) @ batch["weight"]
    return loss + term, found | {"conservative": term}


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        (sac.SAC, {"critic_loss": penalised}),
        (td3.TD3, {"actor_loss": cloning}),
        (dqn.DQN, {"loss": conservative}),
    ],
)
@pytest.mark.parametrize("rows", [3, 64, 300])
def test_losses_of_users(kind: type, own: dict[str, Any], rows: int) -> None:
    agree(*(made(kind, own) for _ in range(2)), rows=rows, tolerance=1e-5)


class Residual(nn.Module):
    """Replacement for an ActorQ's MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(SEEN, width), nn.LayerNorm(width), nn.Linear(width, width)
        self.norms = ()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return x + torch.nn.functional.silu(self.second(self.norm(x)))


class OwnActor(ActorQ):
    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        torch.manual_seed(0)
        self.actor = Residual(self.hidden[-1])


def test_networks_of_users() -> None:
    def with_own_network() -> Any:
        policy = OwnActor(Box(-1, 1, (SEEN,)), Box(-2, 2, (ACTIONS,)), (16, 16), seed=0)
        algorithm = sac.SAC(policy, config_of(sac.SAC))
        algorithm.rows_per_iteration = 1
        return algorithm

    agree(with_own_network(), with_own_network(), tolerance=1e-5)


def test_settings_that_change_take_effect() -> None:
    pair = [made(td3.TD3, {"critic_loss": td3.critic_loss}) for _ in range(2)]
    agree(*pair)
    for algorithm in pair:
        algorithm.config = dataclasses.replace(algorithm.config, tau=0.5, target_noise_clip=0.01)
        algorithm.optimizers["critics"].learning_rate.fill_(0.01)
    agree(*pair, tolerance=2e-5)


def test_frozen_parameters_stay() -> None:
    pair = [made(sac.SAC, {"critic_loss": penalised}) for _ in range(2)]
    for algorithm in pair:
        algorithm.policy.critics.weights[0].requires_grad_(False)
    before = pair[0].policy.critics.weights[0].clone()
    agree(*pair, tolerance=1e-5)
    assert torch.equal(pair[0].policy.critics.weights[0], before)


def test_parts_that_an_earlier_loss_gives_are_columns_of_the_next() -> None:
    def giving(networks: Any, batch: Any, config: Any) -> tuple[Tensor, dict[str, Tensor]]:
        loss, found = sac.critic_loss(networks, batch, config)
        return loss, found | {"doubled": 2 * batch["observation"], "number": batch["reward"] + 1}

    def reading(networks: Any, batch: Any, config: Any) -> tuple[Tensor, dict[str, Tensor]]:
        loss, found = sac.actor_loss(networks, batch, config)
        seen = batch["doubled"].sum(1) * batch["number"]
        action = networks.policy.best_action(networks.policy.encoder(batch["observation"]))
        return loss + (action.sum(1) * seen) @ batch["weight"], found

    own = {"critic_loss": giving, "actor_loss": reading}
    agree(*(made(sac.SAC, own) for _ in range(2)), tolerance=1e-5)


def test_errors_for_priorities_are_those_of_plain_pytorch() -> None:
    algorithm, plain = (made(dqn.DQN, {"loss": conservative}) for _ in range(2))
    batches, random = minibatches(algorithm, 70)
    given, networks = algorithm.objectives()
    _, errors = take_steps(given, networks, batches, random, algorithm.config)
    given, networks = plain.objectives()
    with plain_only():
        _, wanted = take_steps(given, networks, batches, random, plain.config)
    assert errors is not None and wanted is not None and errors.shape == (STEPS, 70)
    assert (errors - wanted).abs().max() < 1e-5 and wanted.abs().max() > 0.1
    assert TD_ERROR not in algorithm.learn(batches, random)


@pytest.mark.parametrize("since", [0, 1, 2])
def test_delayed_losses_count_the_steps_that_measured_them(since: int) -> None:
    pair = [made(td3.TD3, {"critic_loss": td3.critic_loss}, policy_delay=3) for _ in range(2)]
    found = []
    for algorithm, plain in zip(pair, (False, True), strict=True):
        batches, random = minibatches(algorithm, 33)
        given, networks = algorithm.objectives()
        with plain_only(plain):
            found.append(take_steps(given, networks, batches, random, algorithm.config, since)[0])
    assert found[0].keys() == found[1].keys()
    assert all(torch.allclose(found[0][name], x, rtol=1e-4) for name, x in found[1].items())
    assert pair[0].optimizers["actor"].steps == pair[1].optimizers["actor"].steps == (since + STEPS) // 3


def test_the_bits_do_not_depend_on_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    flats = []
    for threads in ("1", "2", "3"):
        monkeypatch.setenv("HEADRACE_THREADS", threads)
        algorithm = made(sac.SAC, {"critic_loss": penalised}, hidden=(64, 64))
        for call in range(2):
            algorithm.learn(*minibatches(algorithm, 300, seed=call))
        flats.append(torch.cat([optimizer.flat for optimizer in algorithm.optimizers.values()]))
    assert torch.equal(flats[0], flats[1]) and torch.equal(flats[0], flats[2])


@pytest.mark.parametrize("reason", ["chooses by the data", "its Adam", "minibatches of 2 rows"])
def test_what_is_not_compiled_says_why_and_learns(reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    def reads(networks: Any, batch: Any, config: Any) -> tuple[Tensor, dict[str, Tensor]]:
        loss, found = sac.critic_loss(networks, batch, config)
        return loss if batch["reward"].sum() > 0 else 2 * loss, found

    algorithm = made(sac.SAC, {"critic_loss": reads if "data" in reason else penalised})
    if "Adam" in reason:
        algorithm.networks.critic_optimizer.__class__ = type("Sgd", (type(algorithm.networks.critic_optimizer),), {})
    before = algorithm.networks.critic_optimizer.flat.clone()
    for _ in range(2):
        algorithm.learn(*minibatches(algorithm, 2 if "rows" in reason else 33))
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("learning from replay")]
    assert len(said) == 1 and ("Adam" if "Adam" in reason else reason) in said[0]
    assert "test_compiled_objectives.py" in said[0] or "data" not in reason
    assert (algorithm.networks.critic_optimizer.flat - before).abs().max() > 1e-5


@pytest.mark.parametrize(("name", "recurrent"), [("sac", "gru"), ("td3", "lstm"), ("dqn", "gru")])
def test_recurrent_policies_learn_from_sequences(name: str, recurrent: str) -> None:
    env = "CartPoleHidden" if name == "dqn" else "PendulumHidden"
    settings = {"recurrent": recurrent, "rnn_size": 8, "hidden": (16,), "sequence_length": 4, "burn_in": 2}
    settings |= {"batch_size": 24, "learning_starts": 60, "num_steps": 8, "gradient_steps": 3, "seed": 3}

    def learned(plain: bool) -> Tensor:
        with plain_only(plain):
            trainer = Trainer(name, env, num_envs=2, total_steps=10**6, threads=1, registered=False, **settings)
            for _ in range(9):
                trainer.iterate()
        assert trainer.algorithm.updates >= 9  # type: ignore[attr-defined]
        trainer.close()
        return torch.cat([x.flat for x in trainer.algorithm.optimizers.values()])  # type: ignore[attr-defined]

    found, wanted = learned(False), learned(True)
    assert (found - wanted).abs().max() < 1e-5
    assert not torch.equal(found, wanted), "it was not compiled"
