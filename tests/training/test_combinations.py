"""Settings of parallel collection that do not go together are refused, with the nearest that do."""

from __future__ import annotations

import pytest

import headrace as hr
from headrace.core.cores import cores
from headrace.training.trainer import Trainer

REFUSED = [
    ({"actors": 2, "workers": 2}, "so leave out workers"),
    ({"collection": "overlapped", "workers": 2}, "give actors=2 in place of workers=2"),
    ({"actors": 2, "collection": "double_buffered"}, "with actors use 'overlapped'"),
    ({"actors": 2, "collection": "async", "drop_slowest": 0.5}, "lose no steps"),
    ({"actors": 2, "max_policy_lag": 4}, "needs collection='async'"),
    ({"max_policy_lag": 4}, "needs actors and collection='async'"),
    ({"actors": 2, "agent_info": [0.0]}, "leave out actors=2"),
    ({"actors": 2, "backend": "torch"}, "backend='torch' does not run in the processes of actors"),
    ({"actors": 9}, "actors must be between 1 and num_envs = 8, got 9"),
    ({"actors": 0}, "actors must be at least 1, got 0"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_what_does_not_go_together_is_refused(options, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        Trainer("ppo", "CartPole-v1", num_envs=8, progress="none", **options)


def test_environments_that_are_made_cannot_be_given_to_actors():
    env = hr.make("CartPole-v1", 8)
    with pytest.raises(ValueError, match="in place of environments that are made"):
        Trainer("ppo", env, actors=2, progress="none")


def test_overlapped_starts_actors_and_leaves_a_core(capfd):
    trainer = Trainer("ppo", "CartPole-v1", num_envs=8, collection="overlapped", progress="none")
    trainer.close()
    assert trainer.config.actors == max(1, min(8, cores() - 1))
    assert "starts actors" in capfd.readouterr().err


def test_processes_may_be_borrowed_for_actors_and_stay():
    with hr.Workers(2) as processes:
        pids = []
        for _ in range(2):
            trainer = Trainer("ppo", "CartPole-v1", num_envs=8, actors=processes, progress="none")
            trainer.iterate()
            pids.append([worker.process.pid for worker in trainer.env.transport.workers])
            trainer.close()
        assert pids[0] == pids[1]
