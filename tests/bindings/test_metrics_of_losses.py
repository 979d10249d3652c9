"""Return values of algorithms' losses: metrics may be numbers, in compiled learning and in plain PyTorch alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.algorithms.a2c import A2C, A2CConfig, a2c_loss
from headrace.algorithms.dqn import DQN, DQNConfig, dqn_loss
from headrace.algorithms.ppo import PPO, PPOConfig, ppo_loss

Loss = Callable[[Any, Any, Any], Any]
PLAIN = {"on": False}  # a loss that writes here is not compiled


def numbers(batch: Any, config: Any, x: torch.Tensor) -> dict[str, Any]:
    return {
        "number": 0.25,
        "whole": 3,
        "flag": True,
        "of_numpy": np.float32(0.5),
        "read": x.item(),
        "twice": 2 * x.item(),
        "setting": config.gamma,
        "rate": config.learning_rate,
        "rows": (x > -1).sum(),
        "tensor": x,
    }


def with_metrics(loss: Loss, column: str) -> tuple[Loss, Loss]:
    """A loss with metrics of all kinds, compiled, and not."""

    def own(policy: Any, batch: Any, config: Any) -> Any:
        value, metrics = loss(policy, batch, config)
        return value, metrics | numbers(batch, config, batch[column].abs() @ batch["weight"])

    def plain(policy: Any, batch: Any, config: Any) -> Any:
        PLAIN["on"] = not PLAIN["on"]
        return own(policy, batch, config)

    return own, plain


def metrics_of(kind: type[Any], name: str, loss: Loss, settings: dict[str, Any], config: Any) -> dict[str, float]:
    algorithm = type("Own", (kind,), {"name": "own", "loss": staticmethod(loss), "__module__": __name__})
    env = hr.make("CartPole-v1", 8)
    trained = algorithm(kind.make_policy(config, env.observation_space, env.action_space, 0), config)
    trainer = hr.Trainer(trained, "CartPole-v1", seed=1, progress="none", **settings)
    found: dict[str, float] = {}
    for _ in range(4):
        found = {key: float(x) for key, x in trainer.iterate().metrics.items()}
    trainer.close()
    return found


ON = {"hidden": (16,), "num_steps": 32}
CASES = {
    "ppo": (PPO, ppo_loss, "advantage", PPOConfig(**ON, minibatch_size=64, epochs=2)),
    "a2c": (A2C, a2c_loss, "advantage", A2CConfig(**ON)),
    "dqn": (DQN, dqn_loss, "reward", DQNConfig(hidden=(16,), num_steps=8, learning_starts=64, batch_size=32)),
}


@pytest.mark.parametrize("case", [*CASES])
def test_metrics_may_be_numbers(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    kind, loss, column, config = CASES[case]
    compiled, plain = with_metrics(loss, column)
    found = metrics_of(kind, "own", compiled, {"num_envs": 8}, config)
    assert "plain PyTorch" not in capsys.readouterr().err
    expected = metrics_of(kind, "own", plain, {"num_envs": 8}, config)
    assert "plain PyTorch" in capsys.readouterr().err
    assert found.keys() == expected.keys() >= {"number", "read", "setting", "rows"}
    for name, x in expected.items():
        assert found[name] == pytest.approx(x, rel=2e-3, abs=1e-4), name
    assert (found["number"], found["whole"], found["flag"], found["of_numpy"]) == (0.25, 3.0, 1.0, 0.5)
    assert found["twice"] == pytest.approx(2 * found["read"]) and found["read"] == pytest.approx(found["tensor"])


@pytest.mark.parametrize("case", [*CASES])
def test_a_loss_may_return_no_metrics(case: str) -> None:
    kind, loss, _, config = CASES[case]
    found = metrics_of(
        kind, "own", lambda policy, batch, config: loss(policy, batch, config)[0], {"num_envs": 8}, config
    )
    assert "learning_rate" in found and "loss" not in found


@pytest.mark.parametrize("case", [*CASES])
@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (
            lambda x, y: (x, y, y),
            r"\(scalar, metrics\) with a dict of metrics, got \(a tensor of shape \[\], an object",
        ),
        (lambda x, y: (x, [1.0]), "got .a tensor of shape .., an object of the class list"),
        (lambda x, y: x.expand(3), r"a loss returns a scalar, .*got a tensor of shape \[3\]"),
        (lambda x, y: 0.5, "got an object of the class float"),
        (
            lambda x, y: (x, {"note": "late"}),
            "the metric 'note' of the loss is 'late', of the class str: give a number",
        ),
    ],
)
def test_what_a_loss_cannot_return_is_said(case: str, returned: Callable[..., Any], message: str) -> None:
    kind, loss, _, config = CASES[case]
    with pytest.raises(TypeError, match=message):
        metrics_of(kind, "own", lambda *given: returned(*loss(*given)), {"num_envs": 8}, config)
