"""Learners that have a GPU each, as trainings: on a simulated device, in processes with a group of gloo's, refused."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers.gpu_ranks import Meeting, ThreadRanks, together
from helpers.strict_device import META, StrictTensor, strict_device
from torch.distributed import FileStore, ProcessGroupGloo

from headrace.core import fused
from headrace.parallel.cuda import device_sum
from headrace.parallel.learners import RankLost
from headrace.training import distributed
from headrace.training import trainer as trainers
from headrace.training.plan import settle
from headrace.training.ranks import ITERATE, Leader, device_of
from headrace.training.torchrun import local_rank
from headrace.training.trainer import Trainer

SMALL = {"num_envs": 5, "num_steps": 4, "hidden": (4,), "progress": "none"}
REPLAY = SMALL | {"learning_starts": 60, "buffer_size": 500, "batch_size": 6}
CASES = {
    "ppo": ("ppo", "CartPole-v1", SMALL | {"epochs": 1, "minibatch_size": 20, "target_kl": 0.1}),
    "inline": ("ppo", "CartPole-v1", SMALL | {"epochs": 1, "minibatch_size": 20, "backend": "inline"}),
    "recurrent": ("a2c", "Pendulum-v1", SMALL | {"recurrent": "gru", "rnn_size": 4, "normalize_advantage": True}),
    "trpo": ("trpo", "CartPole-v1", SMALL | {"minibatch_size": 20, "critic_epochs": 1}),
    "sac": ("sac", "Pendulum-v1", REPLAY),
    "dqn": ("dqn", "CartPole-v1", REPLAY),
}


def plan_of(case: str, **options):
    algorithm, env, settings = CASES[case]
    return settle(algorithm, env, None, None, settings | options)


@pytest.fixture
def plain(monkeypatch):
    monkeypatch.setattr(distributed.signal, "signal", lambda number, handler: None)  # these ranks are threads
    with fused.plain_only(), strict_device():
        yield


@pytest.mark.filterwarnings("ignore:for .*copying from a non-meta parameter")  # of torch, which sees the name meta
@pytest.mark.parametrize("case", CASES)
def test_learners_on_a_device_learn_as_one_with_shards_on_the_cpu(case, plain, monkeypatch):
    """The simulated device does not step parameters: compared is what follows from the first weights. See its docs."""
    same = 2 if case in ("sac", "dqn") else 1  # iterations until the weights are others
    backend = {} if case == "inline" else {"backend": "torch"}
    with closing(Trainer.of(plan_of(case, shards=2, **backend))) as one:
        expected = [one.iterate() for _ in range(same)]
    plan, meeting = plan_of(case, learners=2), Meeting(2)

    def of(rank: int):
        with strict_device(), closing(Trainer.of(plan, ThreadRanks(rank, meeting, plan.config))) as trainer:
            if rank:
                return trainer.follow_orders()
            assert isinstance(next(trainer.policy.parameters()).data, StrictTensor)
            assert trainer.collector.rollout.device == META
            results = [trainer.iterate() for _ in range(3)]
            trainer.load_state_dict(trainer.state_dict())
            results.append(trainer.iterate())
            trainer._ranks.close()  # lets the other end
            return results

    monkeypatch.setattr(trainers, "COMPARED_EVERY", 2)  # of weights on the device
    results, _ = together([partial(of, rank) for rank in range(2)], meeting)
    for found, wanted in zip(results, expected, strict=False):
        assert (found.steps, found.returns, found.lengths) == (wanted.steps, wanted.returns, wanted.lengths)
        assert found.metrics == pytest.approx(wanted.metrics, rel=1e-5, abs=1e-6)
    assert results[-1].iteration == 4 and results[-1].metrics
    assert meeting.log[0] == meeting.log[1]  # the same sums in the same order
    assert {name for name, *_ in meeting.log[0]} == {"nccl", "gloo"}


def gloo_group(path: str, rank: int, size: int, timeout: float):
    """Stands in for nccl_group()."""
    return ProcessGroupGloo(FileStore(path, size), rank, size, timedelta(seconds=timeout))


class Adding:
    """A trainer that adds numbers by a group of the device, which here is the CPU, and waits for it."""

    def __init__(self, ranks, slow: bool) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        device_sum.nccl_group = gloo_group  # in this process alone
        self.ranks, self.slow, self.total = ranks, slow, torch.zeros(3)

    def begin(self) -> None:
        self.ranks.device_sum.device = torch.device("cpu")

    def follow(self, number: int) -> None:
        self.total = torch.full((3,), float(number * (self.ranks.rank + 1)))
        self.ranks.sum(self.total)
        if self.slow:
            signal.pause()

    def own_state(self):
        return {"total": self.total}, None

    def close(self) -> None:
        pass


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_processes_find_each_other_by_a_file_and_a_loss_ends_the_wait(end, monkeypatch):
    monkeypatch.setattr(device_sum, "nccl_group", gloo_group)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    config = replace(plan_of("ppo", learners=2).config, device="cuda")
    leader = Leader(config, partial(Adding, slow=end == "killed"))
    try:
        own = Adding(leader, False)
        leader.join(100)
        own.begin()
        assert leader.device_sum.columns == leader.host.columns == [2, 3]
        folder = Path(leader._folder.name)
        assert folder.stat().st_mode & 0o777 == 0o700  # nobody else's
        leader.order(ITERATE, (10,))
        own.follow(10)
        assert own.total.tolist() == [30.0] * 3
        if end == "closed":
            leader.wait()
            leader.iterated()
            assert leader.states()[0][0]["total"].tolist() == [30.0] * 3
        else:
            monkeypatch.setattr(device_sum, "queue_end", lambda device: lambda: False)
            os.kill(leader.processes[0].process.pid, signal.SIGKILL)
            with pytest.raises(RankLost, match=r"rank 1 \(envs 2 to 4\) was ended by SIGKILL"):
                leader.wait()
    finally:
        leader.close()
    assert leader.device_sum.group is None and not folder.exists()
    assert not leader.processes[0].process.is_alive()


def gpus(monkeypatch, number: int, nccl: bool = True) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: number)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: nccl)


@pytest.mark.parametrize(
    ("found", "options", "words"),
    [
        (
            2,
            {"learners": 3},
            r"learners=3 with device='cuda' need a GPU each, .* finds 2 here: give learners=2, or",
        ),
        (1, {"learners": 2}, r"finds 1 here: give device='cpu', or one learner"),
        (0, {"learners": 2}, r"finds 0 here: give device='cpu', or one learner"),
        (2, {"learners": 2, "device": "cuda:1"}, r"on a GPU each: give device='cuda' in place of 'cuda:1'"),
        (2, {"learners": 2, "collect_device": "cuda:1"}, r"give collect_device='cuda' or 'cpu' in place of 'cuda:1'"),
        (2, {"learners": 2, "backend": "cpu"}, r"of the backend 'cuda', 'torch' or 'inline'"),
        (2, {"learners": 2, "backend": "torch", "collect_device": "cpu"}, r"of the backend 'cpu' or 'inline'"),
        (
            2,
            {"learners": 2, "collect_device": "cuda", "device": "cpu"},
            r"leave out collect_device='cuda', or give",
        ),
        (2, {"learners": 2, "workers": 2}, r"give actors=2 in their place"),
    ],
)
def test_what_learners_on_gpus_cannot_do_is_refused(found, options, words, monkeypatch):
    gpus(monkeypatch, found)
    with pytest.raises(ValueError, match=words):
        plan_of("ppo", **{"device": "cuda"} | options)


def test_without_nccl_learners_on_gpus_are_refused(monkeypatch):
    gpus(monkeypatch, 2, nccl=False)
    with pytest.raises(ValueError, match=r"add their sums by NCCL, which torch .* was built without"):
        plan_of("ppo", learners=2, device="cuda")


def test_torchruns_processes_have_the_gpus_of_their_machine(monkeypatch):
    started = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    for name, value in {**started, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    gpus(monkeypatch, 2)
    options = {"num_envs": 8, "device": "cuda"}
    with pytest.raises(ValueError, match=r"4 processes of torchrun on one machine, .* finds 2 here: give --nproc"):
        plan_of("ppo", **options)
    gpus(monkeypatch, 4)
    assert plan_of("ppo", **options).config.learners == 8
    assert local_rank() == (1, 4)
    assert device_of(plan_of("ppo", **options).config, 1) == torch.device("cuda", 1)
    assert device_of(plan_of("ppo", **options | {"device": "auto"}).config, 1) == torch.device("cpu")


def test_nccl_of_one_machine_talks_on_loopback_unless_another_is_named(monkeypatch):
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    device_sum.on_loopback()
    assert os.environ["NCCL_SOCKET_IFNAME"] == "lo"
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")
    device_sum.on_loopback()
    assert os.environ["NCCL_SOCKET_IFNAME"] == "eth7"


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("case", ["ppo", "inline", "sac"])
def test_gpu_two_learners_are_one_with_two_shards(case, graphs):
    algorithm, env, settings = CASES[case]
    settings = settings | {"num_envs": 17, "device": "cuda", "total_steps": 10**6}
    with (
        closing(Trainer(algorithm, env, **settings, shards=2, graphs=False)) as one,
        closing(Trainer(algorithm, env, **settings, learners=2, graphs=graphs)) as two,
    ):
        for _ in range(4):
            wanted, found = one.iterate(), two.iterate()
        assert found.steps == wanted.steps
        assert found.metrics == pytest.approx(wanted.metrics, rel=1e-2, abs=1e-3)
        assert (two._graph is not None and two._graph._replay is not None) == (graphs and case != "inline")
        for _ in range(100):
            two.iterate()  # the 100th compares weights
