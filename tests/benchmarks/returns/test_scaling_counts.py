"""Counts of the benchmark of scaling. test_solve.py tests that it runs."""

from __future__ import annotations

from benchmarks.returns import scaling


def row(settings: str, num_envs: int, held_s: float | None, updates: int = 100) -> dict:
    held = {"held": held_s is not None, "held_s": held_s, "held_steps": 5000, "updates": updates}
    settled = {"num_steps": 8, "epochs": 2, "minibatch_size": 64, "learning_rate": 1e-3}
    counts = {"iterations": 9, "vector_steps": 72}
    return {"env": "CartPole-v1", "settings": settings, "num_envs": num_envs, **held, **settled, **counts}


def test_runs_given_up_count_as_longer_than_all_others():
    (line,) = scaling.summary([row("rule", 8, x) for x in (3.0, None, 1.0, 2.0, None)])
    assert (line["held"], line["held_s"], line["held_min"], line["held_max"]) == (3, 3.0, 1.0, 3.0)
    (line,) = scaling.summary([row("rule", 8, x) for x in (3.0, None, None)])
    assert line["held"] == 1 and line["held_s"] is None


def test_the_best_of_each_kind_is_over_all_numbers_of_envs():
    cases = [("rule", 8, 2.0), ("rule", 512, 0.5), ("fixed", 8, 1.0), ("fixed", 512, None)]
    (best,) = scaling.best(scaling.summary([row(*case) for case in cases]))
    assert (best["rule"], best["rule_envs"], best["fixed"], best["fixed_envs"]) == (0.5, 512, 1.0, 8)
    assert best["ratio"] == 0.5
    (none,) = scaling.best(scaling.summary([row("rule", 8, 2.0), row("fixed", 8, None)]))
    assert none["fixed"] is None and none["ratio"] is None


def test_a_picture_shows_what_was_given_up(tmp_path):
    scaling.plot(scaling.summary([row("rule", 8, 2.0), row("fixed", 8, None)]), tmp_path)
    scaling.plot(scaling.summary([row("rule", 8, None), row("fixed", 8, None)]), tmp_path)
    assert (tmp_path / "scaling.png").stat().st_size > 10_000
