"""Populations: copies of the best members, failures, going on after a kill, the command and the plot."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import headrace as hr
from headrace.cli.main import main
from headrace.data.finite import NotFinite
from headrace.populations import lineages, population_member
from headrace.populations.population_record import RECORD, Record
from headrace.populations.train_population import population
from headrace.runs import checkpoint

SMALL = {"num_envs": 4, "num_steps": 16, "hidden": [8], "registered": False, "threads": 1}
GIVEN = {"mutate": {"learning_rate": "1e-5..1e-2"}, "members": 3, "interval": 300, "total_steps": 900, **SMALL}


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / RECORD).read_text().splitlines()]


def decisions(folder: Path) -> list[dict]:
    return [row for row in rows(folder) if "decisions" in row]


def same(one, other) -> bool:
    """Tell whether two states are equal, except for their seconds."""
    if torch.is_tensor(one):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one if key != "seconds")
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def states(folder: Path) -> list:
    return [checkpoint.load(folder / f"member_{member}" / "last", "training") for member in range(3)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "p"
    population("ppo", "CartPole-v1", folder=folder, **GIVEN)
    return folder


def test_a_copy_has_the_weights_of_its_source_and_other_settings(tmp_path):
    begun = {}

    class Begun(population_member._Member):
        def __enter__(self):
            super().__enter__()
            weights = {name: x.clone() for name, x in self.policy.state_dict().items()}
            begun.setdefault(self.folder.name, []).append((weights, self.trainer.algorithm.config.learning_rate))
            return self

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(population_member, "_Member", Begun)
        found = population("ppo", "CartPole-v1", folder=tmp_path, **{**GIVEN, "total_steps": 600})
    made = decisions(tmp_path)[1]["decisions"]
    (copy,) = [row for row in made if row["from"] != row["member"]]
    source = f"member_{copy['from']}"
    (_, first), (weights, rate) = begun[f"member_{copy['member']}"]
    of_source, source_rate = begun[source][1]
    assert all(torch.equal(weights[name], x) for name, x in of_source.items())
    assert rate == copy["settings"]["learning_rate"] not in (first, source_rate)
    ends = states(tmp_path)
    networks = [state["learner"]["algorithm"]["policy"] for state in ends]
    assert not same(networks[copy["member"]], networks[copy["from"]])
    assert {member.number for member in found.members} == {0, 1, 2}
    assert [member.score for member in found.members] == sorted((m.score for m in found.members), reverse=True)
    assert found.policy.predict(torch.zeros(4).numpy())[0] in (0, 1)


def test_the_bits_are_the_same_wherever_it_was_killed(whole, tmp_path, monkeypatch):
    """Each write to the record is a place of a kill: after it, and before it with the training done."""
    add, left = Record.add, 0

    class Killed(BaseException):
        pass

    def killing(record, row):
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed
        add(record, row)

    monkeypatch.setattr(Record, "add", killing)
    kills = 0
    for steps in (4, 2, 3, 3, 2, 100):
        left = steps
        try:
            found = population("ppo", "CartPole-v1", folder=tmp_path / "p", **GIVEN)
        except Killed:
            kills += 1
    assert kills == 5 and len(found.members) == 3
    assert decisions(tmp_path / "p") == decisions(whole)
    assert same(states(tmp_path / "p"), states(whole))
    monitors = [[(f / f"member_{m}" / "monitor.csv").read_text() for m in range(3)] for f in (tmp_path / "p", whole)]
    lengths = [[[line.split(",")[:2] for line in text.splitlines()[1:]] for text in texts] for texts in monitors]
    assert lengths[0] == lengths[1]


def test_a_kill_in_an_interval_is_no_other_training(whole, tmp_path):
    def die(t, row):
        if t.folder.name == "member_1" and 450 < row.steps < 600:
            t._recorder.save()  # what a run has written in the middle of an interval
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        population("ppo", "CartPole-v1", folder=tmp_path / "p", each=die, **GIVEN)
    with open(tmp_path / "p" / RECORD, "a") as file:
        file.write('{"interval": 2, "memb')  # killed while it wrote
    population("ppo", "CartPole-v1", folder=tmp_path / "p", **GIVEN)
    assert decisions(tmp_path / "p") == decisions(whole) and same(states(tmp_path / "p"), states(whole))


def fails(t, row):
    if t.folder.name == "member_2" and 400 < t.trainer.steps < 600:
        raise NotFinite("the loss is NaN")


def dies(t, row):
    if t.folder.name == "member_0" and t.trainer.steps < 300:
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_member_that_diverges_is_replaced_and_named(tmp_path):
    said = []
    population("ppo", "CartPole-v1", folder=tmp_path, each=fails, watch=said.append, **GIVEN)
    assert any("member 2: has failed: NotFinite: the loss is NaN" in line for line in said)
    (line,) = [line for line in said if "member 2 has failed and is replaced by a copy of member" in line]
    assert "learning_rate" in line
    (row,) = [row for row in rows(tmp_path) if "failed" in row]
    assert (row["interval"], row["member"]) == (2, 2) and "score" not in row
    steps = [json.loads(line)["steps"] for line in (tmp_path / "member_2" / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps) and steps[-1] >= 900


@pytest.mark.slow
def test_a_process_that_dies_in_its_first_interval_is_replaced(tmp_path, whole):
    said = []
    found = population("ppo", "CartPole-v1", folder=tmp_path, each=dies, watch=said.append, jobs=2, **GIVEN)
    assert any("member 0: has failed: its process was killed" in line for line in said)
    assert len(found.members) == 3
    again = population("ppo", "CartPole-v1", folder=tmp_path / "two", jobs=2, **GIVEN)
    assert again.members[0].score == max(
        row["score"] for row in rows(whole) if row.get("interval") == 3 and "score" in row
    )
    assert same(states(tmp_path / "two"), states(whole))


def test_all_members_failing_is_an_error(tmp_path):
    def broken(t, row):
        raise ValueError("nothing works")

    with pytest.raises(
        RuntimeError, match="all members have failed in interval 1, the first: ValueError: nothing works"
    ):
        population("ppo", "CartPole-v1", folder=tmp_path, each=broken, **GIVEN)


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"members": 1}, "at least 2"),
        ({"quantile": 0.6}, "quantile"),
        ({"interval": 1_000}, "longer than total_steps"),
        ({"learning_rate": 1e-3}, "leave out the setting"),
        ({"target_return": 100}, "same steps"),
        ({"save_freq": 10}, "keeps checkpoints"),
        ({"score": "loss"}, "'training' or 'evaluation'"),
        ({"resume": "runs"}, "goes on"),
        ({"together": True, "each": print}, "one thread at a time"),
    ],
)
def test_wrong_arguments_are_named(given, wrong, tmp_path):
    with pytest.raises(ValueError, match=wrong):
        population("ppo", "CartPole-v1", folder=tmp_path / "p", **{**GIVEN, **given})
    assert not (tmp_path / "p").exists()


def test_members_together_come_to_the_same_bits(whole, tmp_path):
    population("ppo", "CartPole-v1", folder=tmp_path / "p", together=True, jobs=3, **GIVEN)
    assert same(states(tmp_path / "p"), states(whole))
    decided = [[row["decisions"] for row in decisions(folder)] for folder in (tmp_path / "p", whole)]
    assert decided[0] == decided[1]
    with pytest.raises(ValueError, match="backend is 'inline'"):
        population("ppo", "CartPole-v1", folder=tmp_path / "q", together=True, backend="inline", **GIVEN)


def test_another_population_in_the_folder_is_refused(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "p")
    with pytest.raises(ValueError, match="interval 300 -> 450"):
        population("ppo", "CartPole-v1", folder=tmp_path / "p", **{**GIVEN, "interval": 450})
    again = population("ppo", "CartPole-v1", folder=tmp_path / "p", **GIVEN)  # nothing is left to do
    assert [member.score for member in again.members] and same(states(tmp_path / "p"), states(whole))


def test_an_interval_without_episodes_says_what_to_do(tmp_path):
    settings = {**GIVEN, "interval": 64, "total_steps": 128}
    with pytest.raises(ValueError, match="no episode of member 0 has ended in interval 1"):
        population("ppo", "Pendulum-v1", folder=tmp_path / "p", **settings)
    found = population("ppo", "Pendulum-v1", folder=tmp_path / "q", score="evaluation", eval_episodes=2, **settings)
    assert found.members[0].score < 0


def test_a_rest_shorter_than_an_interval_belongs_to_the_last_one(tmp_path):
    found = population("ppo", "CartPole-v1", folder=tmp_path, **{**GIVEN, "total_steps": 800})
    assert len(decisions(tmp_path)) == 3
    assert [row["steps"] >= 800 for row in rows(tmp_path) if "score" in row] == [False] * 3 + [True] * 3
    assert [points[0].steps for points in lineages.history(tmp_path)] == [(0, 300), (300, 800)]
    assert len(found.members) == 3


def test_members_of_self_play_are_not_compared(tmp_path):
    settings = {**GIVEN, "mutate": {"learning_rate": "1e-4..1e-3"}, "self_play": True, "registered": True}
    with pytest.raises(ValueError, match="opponents of its own"):
        population("ppo", "ConnectFourPlayers", folder=tmp_path / "p", **settings)
    assert not (tmp_path / "p").exists()


def test_a_script_without_a_main_guard_is_told_so_and_goes_on_with_one(tmp_path):
    program, call = tmp_path / "program.py", f'hr.population("ppo", "CartPole-v1", folder="p", jobs=2, **{GIVEN})\n'
    program.write_text(f"import headrace as hr\n{call}")
    ended = subprocess.run([sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 1
    assert 'call this below `if __name__ == "__main__":`, or give jobs=1' in ended.stderr.splitlines()[-1]
    assert not [row for row in rows(tmp_path / "p") if "failed" in row]
    program.write_text(f'import headrace as hr\nif __name__ == "__main__":\n    {call}')
    subprocess.run([sys.executable, str(program)], cwd=tmp_path, check=True)
    assert len(decisions(tmp_path / "p")) == 4


def test_the_command_goes_on_and_plots_lineages(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--members", "3", "--interval", "300", "--total-steps", "600", "--num-envs", "4", "--num-steps", "16"]
    command = ["population", "ppo", "CartPole-v1", "--mutate", "learning-rate=1e-5..1e-2", *words, "--hidden", "8"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "replaced by a copy" in said and "headrace plot runs/populations/ppo-CartPole-v1" in said
    assert main(["eval", "runs/populations/ppo-CartPole-v1/member_0", "--episodes", "2"]) == 0
    assert main(["runs"]) == 0
    listed = capsys.readouterr()
    assert listed.out.count("member_") >= 3 and "left out" not in listed.err
    assert main(["plot", "runs/populations/ppo-CartPole-v1", "--output", "p.svg"]) == 0
    assert Path("p.svg").stat().st_size > 5_000
    assert main([*command, "--gamma", "0.5"]) == 2
    assert "gamma" in capsys.readouterr().err


def test_lineages_are_those_of_the_record(tmp_path):
    record = Record(tmp_path)
    record.begin({"interval": 10, "total_steps": 30})

    def decided(*sources):
        return [
            {"member": m, "from": s, "start": None, "own": None, "settings": {"clip": 0.1 * s}}
            for m, s in enumerate(sources)
        ]

    record.add({"interval": 0, "decisions": decided(0, 1, 2)})
    for interval, sources in ((1, (0, 0, 2)), (2, (1, 1, 2)), (3, (0, 1, 2))):
        for member in range(3):
            result = {"failed": "x"} if (interval, member) == (2, 0) else {"score": [3.0, 1.0, 2.0][member], "steps": 1}
            record.add({"interval": interval, "member": member, **result})
        record.add({"interval": interval, "decisions": decided(*sources)})
    found = lineages.history(tmp_path)
    assert [[point.parent for point in points] for points in found] == [[0, 1, 2], [0, 0, 2], [1, 1, 2]]
    assert [[point.origin for point in points] for points in found] == [[0, 1, 2], [0, 0, 2], [0, 0, 2]]
    assert lineages.ancestors(found) == [0, 1, 0] and found[1][0].score is None
    assert found[2][0].steps == (20, 30)
    with pytest.raises(FileNotFoundError, match="is not a population"):
        lineages.history(tmp_path / "none")


def test_it_is_public():
    assert hr.population is population


class Walk(gymnasium.Env):
    """Episodes of 20 steps, in Python; the reward is for the action 1 while a coin is up."""

    observation_space, action_space = gymnasium.spaces.Box(0, 1, (1,)), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.coin = 0, self.np_random.integers(2)
        return np.array([self.coin], np.float32), {}

    def step(self, action):
        reward, self.coin, self.steps = float(action == self.coin), self.np_random.integers(2), self.steps + 1
        return np.array([self.coin], np.float32), reward, False, self.steps == 20, {}


def test_replay_buffers_are_copied_too_and_kills_change_nothing_in_python_environments(tmp_path):
    given = {"mutate": {"learning_rate": "1e-5..1e-1"}, "members": 3, "interval": 200, "total_steps": 600}
    given |= {"num_envs": 2, "hidden": (8,), "buffer_size": 1_000, "learning_starts": 50, "quantile": 0.34}

    def die(t, row):
        if row.steps > 500 and t.folder.name == "member_1":
            raise KeyboardInterrupt

    population("dqn", Walk, folder=tmp_path / "whole", **given)
    with pytest.raises(KeyboardInterrupt):
        population("dqn", Walk, folder=tmp_path / "killed", each=die, **given)
    population("dqn", Walk, folder=tmp_path / "killed", **given)
    copied = [row for row in decisions(tmp_path / "whole")[1]["decisions"] if row["from"] != row["member"]]
    assert copied and decisions(tmp_path / "whole") == decisions(tmp_path / "killed")
    assert same(states(tmp_path / "whole"), states(tmp_path / "killed"))


def test_a_signal_leaves_a_population_that_goes_on(whole, tmp_path):
    def interrupt(t, row):
        if row.steps > 450 and t.folder.name == "member_1":
            os.kill(os.getpid(), signal.SIGINT)

    said = []
    found = population("ppo", "CartPole-v1", folder=tmp_path / "p", each=interrupt, watch=said.append, **GIVEN)
    assert (found.signal, found.members) == ("SIGINT", ()) and "the same command goes on" in said[-1]
    with pytest.raises(RuntimeError, match="was interrupted"):
        _ = found.policy
    population("ppo", "CartPole-v1", folder=tmp_path / "p", **GIVEN)
    assert decisions(tmp_path / "p") == decisions(whole) and same(states(tmp_path / "p"), states(whole))


def is_alive(holder: Path) -> bool:
    """Tell whether the process that a run's folder names is there, and has not ended."""
    stat = Path("/proc") / holder.read_text().split()[1] / "stat"
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


LONG = {**GIVEN, "interval": 200_000, "total_steps": 400_000}
COMMANDED = f"""
from headrace.populations.train_population import population
if __name__ == "__main__":
    population("ppo", "CartPole-v1", folder="p", jobs=2, **{LONG})
"""


@pytest.mark.slow
def test_members_end_with_a_killed_population_and_it_goes_on_with_the_same_bits(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(COMMANDED)
    first = subprocess.Popen([sys.executable, str(program)], cwd=tmp_path)
    while not (tmp_path / "p" / RECORD).exists() or len(rows(tmp_path / "p")) < 3:
        assert first.poll() is None
        time.sleep(0.05)
    first.kill()  # and not its members
    first.wait()
    time.sleep(0.5)
    assert not any(map(is_alive, (tmp_path / "p").glob("member_*/writer.txt")))
    subprocess.run([sys.executable, str(program)], cwd=tmp_path, check=True)
    assert not [row for row in rows(tmp_path / "p") if "failed" in row]
    population("ppo", "CartPole-v1", folder=tmp_path / "whole", **LONG)
    assert decisions(tmp_path / "p") == decisions(tmp_path / "whole")
    assert same(states(tmp_path / "p"), states(tmp_path / "whole"))
