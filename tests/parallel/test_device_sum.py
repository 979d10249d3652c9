"""Sums of learners that have a GPU each: which group adds what, what a wait ends with, and sums in graphs.

Without GPUs NCCL is imitated: by gloo, or by an operation that an imitated graph records (helpers/gpu_ranks.py).
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest
import torch
from helpers.as_on_a_gpu import as_on_a_gpu, sorted_draws  # noqa: F401
from helpers.fake_graph import record
from helpers.gpu_ranks import Group, Meeting, together
from torch.distributed import FileStore, ProcessGroupGloo

from headrace import envs
from headrace.algorithms.a2c import A2C, A2CConfig
from headrace.algorithms.ppo import PPO, PPOConfig
from headrace.algorithms.sac import SAC, SACConfig
from headrace.parallel.collector import InlineCollector
from headrace.parallel.cuda import device_sum
from headrace.parallel.cuda.cuda_graphs import GraphedIteration, cuda_graph
from headrace.parallel.cuda.device_sum import DeviceSum, nccl_group
from headrace.parallel.learners import Ended, RankLost, SharedSum
from headrace.training.shards import Sharded

CPU = torch.device("cpu")
NUM_ENVS, STEPS = 7, 4
ON_POLICY = {"num_steps": STEPS, "hidden": (8,)}
CASES = {
    "ppo": (PPO, "CartPole-v1", PPOConfig(**ON_POLICY, epochs=2, minibatch_size=14, target_kl=1e-4, schedule="linear")),
    "a2c": (A2C, "Pendulum-v1", A2CConfig(**ON_POLICY, normalize_advantage=True)),
    "sac": (SAC, "Pendulum-v1", SACConfig(num_steps=2, hidden=(8,), learning_starts=28, buffer_size=700, batch_size=9)),
}


class Host:
    """Stand-in for the Reduce for tensors of the CPU, as far as a DeviceSum uses it."""

    columns = (4, 3)

    def __init__(self, rank: int) -> None:
        self.rank, self.size, self.beats, self.calls = rank, 2, 0, []

    def beat(self) -> None:
        self.beats += 1

    def __call__(self, *tensors) -> None:
        self.calls.append(len(tensors))


def test_tensors_of_the_device_are_added_by_its_group_and_others_by_the_host(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # gloo stands in for NCCL

    def of(rank: int):
        group = ProcessGroupGloo(FileStore(str(tmp_path / "ranks"), 2), rank, 2, timedelta(seconds=20))
        host = Host(rank)
        added = DeviceSum(host, group, CPU, 20.0)
        gradient, scalar = torch.full((5,), rank + 1.0), torch.tensor(2.0 * rank, requires_grad=True)
        count, table = torch.tensor(rank + 3), torch.arange(6.0).view(2, 3).t() * (rank + 1)
        place = gradient.data_ptr()
        added(gradient)
        added(gradient, scalar, count, table)
        elsewhere = torch.ones(2, device="meta")
        added(elsewhere, count)
        added.close()
        added.close()
        return gradient.data_ptr() == place, gradient, scalar.item(), int(count), table, host.calls

    for in_place, gradient, scalar, count, table, of_host in together([partial(of, rank) for rank in range(2)]):
        assert in_place and torch.equal(gradient, torch.full((5,), 6.0))
        assert (scalar, count, of_host) == (2.0, 14, [1])
        assert torch.equal(table, torch.arange(6.0).view(2, 3).t() * 3)


@pytest.mark.parametrize("end", ["late", "ended", "told"])
def test_a_wait_for_the_device_ends_where_another_rank_is_gone(end, monkeypatch):
    meeting, host = Meeting(2), Host(1)
    group = Group(meeting, 1)
    added = DeviceSum(host, group, CPU, 0.05 if end == "late" else 20.0)
    added.wait()  # the CPU has done everything
    assert host.beats == 1 and not added.lost
    monkeypatch.setattr(device_sum, "queue_end", lambda device: lambda: False)
    if end == "late":
        with pytest.raises(RankLost, match=r"the GPU of rank 1 has waited 0.05 s for the sums of other ranks"):
            added.wait()
    elif end == "ended":
        memory = SharedSum(1, 2, 8)
        memory.flags[1] = 1
        added.watch = memory.check_ended
        with pytest.raises(Ended, match="ended by another rank"):
            added.wait()
    else:
        added.watch = lambda: (_ for _ in ()).throw(ZeroDivisionError("rank 0"))
        with pytest.raises(ZeroDivisionError):
            added.wait()
    assert added.lost and host.beats >= 2
    added.close()
    assert group.aborted


def test_a_group_that_fails_has_lost_a_rank():
    group = Group(Meeting(2), 1)
    group.allreduce = lambda tensors: (_ for _ in ()).throw(RuntimeError("connection closed by peer"))
    with pytest.raises(RankLost, match="as rank 1 has noticed: connection closed by peer"):
        DeviceSum(Host(1), group, CPU, 1.0)(torch.ones(1))


def made(case: str, first: int, number: int):
    kind, name, config = CASES[case]
    env = envs.make(name, number, backend="torch", device="cpu", first_env=first)
    algorithm = kind.build(config, env.observation_space, env.action_space, 3, "cpu")
    return InlineCollector(env, algorithm.policy, config.num_steps, algorithm.columns(), 3), algorithm


def keep_a_tensor(env) -> None:
    """Let an environment keep a new tensor for its next step."""
    step = env.step

    def keeping(rollout, t):
        step(rollout, t)
        env.last = rollout.reward[t] * 2

    env.step = keeping


def graphed(case: str, meeting: Meeting, updates: int, breaks: int = -1):
    """Learners with graphs, in a thread each. breaks: the rank whose iteration no graph can hold."""

    def of(rank: int):
        first, number = (0, 3) if rank == 0 else (3, 4)
        collector, algorithm = made(case, first, number)
        algorithm.part = (first, NUM_ENVS)
        algorithm.prepare(collector.rollout)
        host = Host(rank)
        host.columns = (3, 4)
        algorithm.reduce = DeviceSum(host, Group(meeting, rank), CPU, 60.0)
        if rank == breaks:
            keep_a_tensor(collector.env)

        def capture(body):  # one that leaves no trace, as that of a GPU leaves none
            before = algorithm.state_dict(), collector.state_dict()
            replay = record(body)
            algorithm.load_state_dict(before[0])
            collector.load_state_dict(before[1])
            return replay

        graph, rows, replays = GraphedIteration(collector, algorithm, capture), [], 0
        for k in range(updates):
            metrics = graph.iterate(k / updates)
            replays += metrics is not None
            if metrics is None:
                metrics = algorithm.update(collector.collect(), k / updates)
            rows.append({name: float(value) for name, value in metrics.items()})
        graph.close()
        return [x.clone() for x in algorithm.policy.state_dict().values()], rows, replays, graph.refused

    return together([partial(of, rank) for rank in range(2)], meeting)


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("case", CASES)
def test_sums_in_graphs_give_the_bits_of_one_learner_with_shards(case):
    updates = 9 if case == "sac" else 4
    meeting = Meeting(2)
    ours, theirs = graphed(case, meeting, updates)
    collector, algorithm = made(case, 0, NUM_ENVS)
    both, rows = Sharded(algorithm, 2), []
    both.prepare(collector.rollout)
    for k in range(updates):
        metrics = both.update(collector.collect(), k / updates)
        rows.append({name: float(value) for name, value in metrics.items()})
    for weights, found, replays, refused in (ours, theirs):
        assert not refused and replays >= 3
        assert found == rows
        assert all(map(torch.equal, weights, algorithm.policy.state_dict().values()))
    assert meeting.log[0] == meeting.log[1]  # the same sums in the same order
    assert len(meeting.log[0]) >= 10 * (4 if case == "sac" else updates)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_no_learner_has_a_graph_where_one_cannot(capsys):
    (*_, ours, of_ours), (*_, theirs, of_theirs) = graphed("a2c", Meeting(2), 3, breaks=1)
    assert (ours, theirs) == (0, 0)
    assert of_ours == "another learner's iteration cannot be captured"
    assert "bytes of new tensors" in of_theirs
    assert capsys.readouterr().err.count("no CUDA graph, going on step by step") == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_a_graph_holds_nccls_sums(tmp_path):
    """One rank, whose group adds nothing to its tensors: captured, replayed, and as step by step."""
    found = []
    for graph in (True, False):
        env = envs.make("CartPole-v1", 256, backend="torch", device="cuda")
        config = PPOConfig(num_steps=4, epochs=2, minibatch_size=512, hidden=(8,), target_kl=0.1)
        algorithm = PPO.build(config, env.observation_space, env.action_space, 3, "cuda")
        host = Host(0)
        host.size = 1
        group = nccl_group(str(tmp_path / f"ranks{graph}"), 0, 1, 60.0)
        algorithm.reduce = DeviceSum(host, group, torch.device("cuda", 0), 60.0)
        collector = InlineCollector(env, algorithm.policy, 4, algorithm.columns(), 3)
        graphs = GraphedIteration(collector, algorithm, partial(cuda_graph, alone=False))
        for k in range(5):
            metrics = graphs.iterate(k / 5) if graph else None
            assert (metrics is not None) == (graph and k > 0), graphs.refused
            if metrics is None:
                algorithm.update(collector.collect(), k / 5)
            algorithm.reduce.wait()
        found.append(algorithm.optimizer.flat.clone())
        graphs.close()
        algorithm.reduce.close()
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
