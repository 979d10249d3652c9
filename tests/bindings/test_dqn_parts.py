"""However many samples a part of a minibatch has, DQN's kernel gives the same bits."""

import pytest
import torch

from headrace import Trainer
from headrace.bindings import dqn

SMALL = {"num_envs": 4, "num_steps": 8, "learning_starts": 64, "prioritized": False, "target_return": None}


def learned(rows: int, **settings: object) -> torch.Tensor:
    """Parameters after some gradient steps on minibatches of so many rows."""
    trainer = Trainer("dqn", "CartPole-v1", seed=1, batch_size=rows, **SMALL | settings)
    for _ in range(6):
        trainer.iterate()
    return trainer.algorithm.optimizer.flat.clone()


@pytest.mark.parametrize(
    ("rows", "settings"),
    [
        (64, {"double": True, "hidden": (33, 17)}),
        (100, {"double": False, "hidden": (64, 40)}),
        (7, {"double": True, "hidden": (16,)}),
        (50, {"dueling": True, "layer_norm": True, "hidden": (33, 17)}),
    ],
)
def test_parts_of_any_size_give_the_same_bits(monkeypatch, rows, settings):
    found, asked = [], list[int]()
    for lanes in (16, 32, 64):
        monkeypatch.setattr(dqn, "_lanes", lambda rows, threads, lanes=lanes: asked.append(lanes) or lanes)
        found.append(learned(rows, **settings))
    assert set(asked) == {16, 32, 64}
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_each_thread_has_a_part_and_few_samples_are_missing():
    assert [dqn._lanes(rows, threads) for rows, threads in ((64, 1), (64, 2), (64, 4), (256, 2), (256, 4))] == [
        *(64, 32, 16, 64, 64)
    ]
    assert [dqn._lanes(rows, 1) for rows in (16, 32, 33, 100)] == [16, 32, 64, 64]
    assert dqn._lanes(64, 64) == 16
