"""Gradient steps by utd_ratio: as many as it says, or a line that says how many."""

import pytest

import headrace as hr


def _ratio(**settings) -> float:
    trainer = hr.Trainer(
        "sac", "Pendulum-v1", registered=False, learning_starts=50, hidden=(8,), batch_size=4, **settings
    )
    for _ in range(max(3, 2000 // (trainer.algorithm.num_steps * settings["num_envs"]))):
        trainer.iterate()
    return trainer.algorithm.updates / (trainer.algorithm.rows - 50)


@pytest.mark.parametrize(("envs", "ratio"), [(1, 0.01), (1, 0.37), (1, 1.5), (3, 0.5), (7, 0.25)])
@pytest.mark.parametrize("backend", ["auto", "inline"])
def test_rollouts_are_so_long_that_the_ratio_holds(envs, ratio, backend, capsys):
    measured = _ratio(num_envs=envs, utd_ratio=ratio, backend=backend)
    assert measured == pytest.approx(ratio, rel=0.06)
    assert "is taken" not in capsys.readouterr().err


@pytest.mark.parametrize("settings", [{"num_steps": 8}, {"num_steps": 8, "train_freq": 8}])
def test_a_ratio_that_given_rollouts_cannot_keep_is_said(settings, capsys):
    assert _ratio(num_envs=1, utd_ratio=0.01, **settings) == pytest.approx(0.125, rel=0.05)
    line = capsys.readouterr().err
    assert "utd_ratio=0.01 asks for 0.08 gradient steps after every 8 environment steps" in line
    assert "1 is taken, as with utd_ratio=0.125" in line


def test_gradient_steps_that_are_given_are_taken_without_a_word(capsys):
    trainer = hr.Trainer("sac", "Pendulum-v1", num_envs=1, num_steps=3, gradient_steps=2, learning_starts=3)
    trainer.iterate(), trainer.iterate()
    assert "is taken" not in capsys.readouterr().err
