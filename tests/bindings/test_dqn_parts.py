"""However many samples a part of a minibatch has, DQN's kernel gives the same bits; and where parts are rows of layers,
however many threads share them, and within rounding of plain torch."""

from itertools import pairwise

import pytest
import torch

from headrace import Trainer
from headrace.bindings import dqn
from headrace.core import fused
from headrace.kernels.nn.layout import Layer

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


@pytest.mark.parametrize(
    ("rows", "settings"),
    [
        (64, {"double": False, "hidden": (160, 130)}),
        (50, {"double": True, "hidden": (33, 17, 70), "target_interval": 3, "tau": 0.3}),
        (16, {"double": True, "hidden": (9,), "activation": "silu"}),
        (30, {"double": False, "hidden": (70, 16), "activation": "elu", "target_interval": 2}),
    ],
)
def test_rows_of_layers_as_parts(monkeypatch, rows, settings):
    monkeypatch.setattr(dqn, "MANY_WEIGHTS", 0)
    monkeypatch.setattr(dqn, "WORTH_HELP", 0)
    entries, entry = list[str](), dqn.entry
    monkeypatch.setattr(dqn, "entry", lambda name, *rest: entries.append(name) or entry(name, *rest))
    found = []
    for threads in (1, 2, 4):
        monkeypatch.setattr(dqn, "kernel_threads", lambda threads=threads: threads)
        found.append(learned(rows, **settings))
    assert set(entries) == {"off_policy.dqn_rows"}
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    with fused.plain_only():
        expected = learned(rows, **settings)
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=2e-6)


def test_rows_are_parts_for_small_minibatches_of_wide_layers():
    def shape(*hidden: int, norm: tuple[int, int] | None = None) -> list[Layer]:
        return [Layer(n - 1, a, b, 0, 0, "relu", norm) for n, (a, b) in enumerate(pairwise((4, *hidden, 2)))]

    assert dqn._rows_pay(shape(256, 256), 64) and dqn._rows_pay(shape(128, 128), 1)
    assert not dqn._rows_pay(shape(256, 256), 65) and not dqn._rows_pay(shape(64, 64), 64)
    assert not dqn._rows_pay(shape(256, 256, norm=(0, 0)), 64)


def test_each_thread_has_a_part_and_few_samples_are_missing():
    assert [dqn._lanes(rows, threads) for rows, threads in ((64, 1), (64, 2), (64, 4), (256, 2), (256, 4))] == [
        *(64, 32, 16, 64, 64)
    ]
    assert [dqn._lanes(rows, 1) for rows in (16, 32, 33, 100)] == [16, 32, 64, 64]
    assert dqn._lanes(64, 64) == 16
