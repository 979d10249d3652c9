"""Actors on a Ray cluster: the bits of local ones, whatever is lost; and nothing that others can reach."""

from __future__ import annotations

import os
import socket
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")
from helpers.ray_runs import needs_namespace, run

from headrace.envs.workers.process import WorkerError
from headrace.parallel.cluster import connection, head, namespace, pool
from headrace.parallel.cluster.connection import Connection, Settings
from headrace.training.trainer import Trainer


@needs_namespace
def test_a_cluster_of_its_own_gives_the_bits_and_listens_on_loopback_alone():
    found = run("closed")
    assert found["same"]
    assert found["processes"] >= 5 and len(found["listening"]) >= 3 and found["beyond"] == []
    assert found["left"] == [] and found["shared"] == [] and found["session"] == [True, False]
    assert found["details"] == {"actors": 2, "actors_lost": 0, "seconds_lost": 0.0}
    assert "1 node (2 on" in found["resources"] and "object store 79 MB" in found["resources"]


@pytest.mark.slow
@needs_namespace
@pytest.mark.parametrize("collection", ["sync", "overlapped"])
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_any_number_of_actors_gives_the_bits_of_local_ones(algorithm, collection):
    assert run("numbers", algorithm, collection) == {"1": True, "2": True, "4": True}


@pytest.mark.slow
@needs_namespace
def test_losing_an_actor_a_node_and_all_nodes_changes_no_bit():
    found = run("lost")
    assert found["same"] and "3 nodes (3 on" in found["resources"]
    # how few there are before the next has started is a matter of time
    assert found["actors"][0] == 3 and min(found["actors"]) < 3
    # all of the first three; on a busy machine a replacement may not have begun when its node is killed
    assert found["details"]["actors"] == 3 and found["details"]["actors_lost"] >= 3
    assert found["details"]["seconds_lost"] > 0 and "restarts" not in found["details"]


@pytest.mark.slow
@needs_namespace
def test_a_node_that_comes_late_takes_its_share():
    assert run("late") == {"same": True, "before": 2, "after": 4}


@pytest.mark.slow
@needs_namespace
def test_environments_that_cannot_be_saved_stay_where_they_are():
    details = run("late_for_unsaved")
    assert details["actors"] == 2 and "restarts" not in details


@pytest.mark.slow
@needs_namespace
def test_gradients_of_a_cluster_are_those_of_local_actors():
    found = run("gradients")
    assert found["same"] and found["after losses"] == [True, 2] and 1 <= found["lag"] <= 2


@pytest.mark.slow
@needs_namespace
def test_environments_that_fail_hang_or_cannot_be_saved(tmp_path):
    found = run("faults", tmp_path)
    assert found["error"][0] == "ZeroDivisionError" and "saved.py" in found["error"][-1]
    assert found["error"][-1].startswith("in the actor on")
    assert found["import"][0] == "ModuleNotFoundError" and "a_package_that_is_not_here" in found["import"][1]
    assert socket.gethostname() in found["import"][-1] and "in __new__" in found["import"][-1]
    assert found["hang"] is True
    assert found["unsaved"][0] == "WorkerError" and "on_error='restart'" in found["unsaved"][1]
    assert found["restarts"] >= 2


@pytest.mark.slow
@needs_namespace
def test_a_run_goes_on_on_a_cluster_and_back(tmp_path):
    assert run("resumed", tmp_path) == {"to": True, "from": True}


@pytest.mark.slow
@needs_namespace
@pytest.mark.parametrize("cluster", ["local", "nodes"])
def test_learners_with_actors_on_a_cluster_have_the_bits_of_local_ones(cluster):
    found = run("learners", cluster)
    assert found["same"] and found["details"]["actors"] == 4 and found["details"]["actors_lost"] == 1
    assert found["details"]["seconds_lost"] > 0


@pytest.mark.slow
@needs_namespace
def test_a_run_whose_cluster_lost_its_head_is_resumed_without_it(tmp_path):
    found = run("head_lost", tmp_path)
    text, code = found["ended"]
    assert code > 0, text[-2000:]
    assert "has not answered for 1 s" in text and "`headrace train --resume RUN --cluster none`" in text
    text, code = found["refused"]
    assert code > 0 and "there is no cluster at" in text and "give `--cluster none` (cluster=None)" in text
    assert found["codes"] == [0, 0] and found["weights"][0] == found["weights"][1]


def test_a_cluster_that_is_not_there_is_told_with_the_way_to_go_on(monkeypatch):
    monkeypatch.setattr(connection, "_thread", None)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(
            ConnectionError, match=f"no cluster at '{address}'.* nothing listens at .*`ray start --head`"
        ):
            Connection(Settings(address, open=True))
        with pytest.raises(ConnectionError) as caught:
            Trainer("a2c", "CartPole-v1", num_envs=2, actors=2, progress="none", cluster=address, cluster_open=True)
        assert "`--cluster none`" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    "address", ["", "Local", "10.0.0.1", "head:port", ":6379", "10.0.0.1:0", "10.0.0.1:99999", "a:1,b:2"]
)
def test_what_is_no_address_is_told_before_a_token_is_asked_for(address):
    with pytest.raises(ValueError, match=f"cluster='{address}' is no address: give HOST:PORT"):
        Connection(Settings(address))
    with pytest.raises(ValueError, match=r"address of Ray Client.* give HOST:PORT"):
        Connection(Settings("ray://127.0.0.1:10001"))


def test_a_head_that_is_silent_for_long_is_lost(monkeypatch):
    monkeypatch.setattr(head, "EVERY", 0.01)
    monkeypatch.setattr(head, "GONE", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        watch = head.HeadWatch(f"127.0.0.1:{listening.getsockname()[1]}")
        time.sleep(0.2)
        watch.check()
    until = time.monotonic() + 600
    while not watch.lost and time.monotonic() < until:
        time.sleep(0.01)
    with pytest.raises(head.HeadLost, match="--resume RUN --cluster none"):
        watch.check()
    watch.close()


class SlowCluster:
    """Stand-in for Ray: one core for each of some actors, one of which starts every 20 s."""

    def __init__(self, cores: int, used: int = 0) -> None:
        self.cores, self.used, self.now = cores, used, 0.0

    def remote(self, *class_of_actors, **options):
        self.options = options
        actor = SimpleNamespace(begin=SimpleNamespace(remote=lambda setup: object()))
        return lambda cls: SimpleNamespace(remote=lambda: actor)

    def available_resources(self) -> dict:
        return {"CPU": float(self.cores - self.used)}

    def cluster_resources(self) -> dict:
        return {"CPU": float(self.cores)} if self.cores else {}

    def wait(self, refs: list, timeout: float) -> tuple[list, list]:
        self.now += 20.0
        return refs[:1], refs[1:]

    def get(self, ref: object) -> tuple[str, str, int]:
        return "0123456789", "a host", 1


def test_many_actors_on_few_cores_may_take_long_to_start(monkeypatch):
    cluster = SlowCluster(32)
    monkeypatch.setattr(pool, "ray", cluster)
    monkeypatch.setattr(pool, "monotonic", lambda: cluster.now)
    actors = pool.ActorPool(32, lambda place: True)
    actors.start(None)
    assert len(actors.members) == 32 and cluster.now == 640.0


@pytest.mark.parametrize(
    ("cluster", "text"),
    [(SlowCluster(4, 4), "4 are in use by others. Wait"), (SlowCluster(0), "none of its nodes has one. Add")],
)
def test_a_cluster_without_a_free_core_is_told(monkeypatch, cluster, text):
    monkeypatch.setattr(pool, "ray", cluster)
    with pytest.raises(WorkerError, match=f"no free core for an actor: {text}"):
        pool.ActorPool(2, lambda place: True).start(None)


def test_an_actor_on_a_gpu_needs_one_that_is_free(monkeypatch):
    cluster = SlowCluster(4)
    monkeypatch.setattr(pool, "ray", cluster)
    with pytest.raises(WorkerError, match=r"no free GPU for an actor: none of its nodes has one. Add"):
        pool.ActorPool(2, lambda place: True, gpus=1).start(None)
    assert cluster.options["num_gpus"] == 1


@pytest.mark.slow
@needs_namespace
def test_a_node_whose_gpu_torch_cannot_use_is_named():
    assert "has a GPU by what Ray knows" in run("gpu")["error"]


@pytest.mark.slow
@needs_namespace
def test_a_process_without_the_token_is_refused():
    assert run("stranger") == {"none": [False, True], "another": [False, True], "right": [True, False]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "cluster='local' has cores for actors: give actors, their number"),
        ({"workers": 2, "actors": None}, "give actors"),
        ({"actors": 2, "collect_device": "mps"}, "collect_device='mps' is not for a cluster"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Trainer("a2c", "CartPole-v1", num_envs=4, progress="none", cluster="local", **options)


def test_a_cluster_without_a_token_is_refused(monkeypatch, tmp_path):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(connection, "TOKEN_FILE", tmp_path / "none")
    with pytest.raises(ValueError, match=r"cluster='10.0.0.1:6379' would be used without a token.* --cluster-open "):
        Connection(Settings("10.0.0.1:6379"))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(ValueError, match=r"RAY_AUTH_MODE is 'disabled'.* not started without a token"):
        Connection(Settings("local"))


def test_without_namespaces_it_says_what_would_be_open(monkeypatch):
    def refused():
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(namespace, "enter", refused)
    monkeypatch.setattr(namespace, "reachable", lambda: {"eth0": "10.1.2.3"})
    with pytest.raises(ValueError, match=r"listens on all addresses .*: 10.1.2.3 \(eth0\); its token"):
        connection._closed(allowed_open=False)
    assert connection._closed(allowed_open=True) is False


@pytest.mark.parametrize(("host", "loopback"), [("127.0.0.1", True), ("0.0.0.0", False), ("::1", True), ("::", False)])
def test_listening_sockets_are_found(host, loopback):
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.bind((host, 0))
        listener.listen()
        port = listener.getsockname()[1]
        found = [one for one in namespace.listening([os.getpid()]) if one.port == port]
    assert [one.loopback for one in found] == [loopback]
    assert not [one for one in namespace.listening([os.getpid()]) if one.port == port]
