"""A training whose iterations are replayed from a graph gives the rows of one that runs step by step.

The graph is imitated on the CPU; see tests/helpers/fake_graph.py.
"""

from __future__ import annotations

import pytest
import torch
from helpers.as_on_a_gpu import as_on_a_gpu, sorted_draws  # noqa: F401
from helpers.fake_graph import put_back

from headrace.data.finite import NotFinite
from headrace.parallel.cuda.cuda_graphs import GraphedIteration
from headrace.training.trainer import Trainer

SETTINGS = {"num_envs": 8, "num_steps": 8, "minibatch_size": 32, "epochs": 1, "hidden": (4,), "schedule": "linear"}
pytestmark = pytest.mark.usefixtures("as_on_a_gpu")


def trained(graph, **settings):
    trainer = Trainer("ppo", "CartPole-v1", backend="torch", device="cpu", **SETTINGS | settings)
    algorithm, collector = trainer.algorithm, trainer.collector

    if graph:
        trainer._graph = GraphedIteration(collector, algorithm, put_back(collector, algorithm))
    return trainer


def test_rows_are_those_of_a_training_without_graphs():
    graphed, plain = trained(graph=True), trained(graph=False)
    assert plain._graph is None  # there is no GPU to capture on
    for _ in range(5):
        results = [trainer.iterate() for trainer in (graphed, plain)]
        assert results[0].returns == results[1].returns and results[0].lengths == results[1].lengths
        rows = [result.row() for result in results]
        for row in rows:
            row.pop("seconds"), row.pop("steps_per_second")
        assert rows[0] == rows[1]
    assert graphed._graph is not None and not graphed._graph.refused
    assert graphed.episodes.count > 0 and rows[0]["iteration"] == 5


def test_a_nan_stops_the_run_in_its_iteration():
    trainer = trained(graph=True)
    trainer.iterate()
    trainer.iterate()
    trainer.env.target.floats[0, 3] = torch.nan
    with pytest.raises(NotFinite, match=r"observation\[0\] is nan in env 3"):
        trainer.iterate()
