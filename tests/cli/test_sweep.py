"""`headrace sweep`: what is searched, pruning, going on, trials side by side."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("optuna")
from headrace.cli import sweep
from headrace.cli.main import main
from headrace.cli.several import sweep_trials as trials
from headrace.tuning.search_space import Choice, Range, combinations, flags, parsed

SMALL = ["--num-envs", "8", "--num-steps", "16", "--hidden", "8", "--target-return", "none", "--final-episodes", "2"]
COMMAND = ["sweep", "ppo", "CartPole-v1", *SMALL, "--total-steps", "800"]


def journal(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "study.jsonl").read_text().splitlines()]


def test_ranges_and_choices():
    words = ["learning_rate=1e-4..1e-2", "num-steps=16..64", "hidden=64x64,256", "shared=true,false"]
    space = parsed(words, "ppo")
    assert space["learning_rate"] == Range(1e-4, 1e-2, False) and space["num_steps"] == Range(16, 64, True)
    assert space["hidden"] == Choice(("64x64", "256"))
    assert flags({"hidden": "64x64", "shared": "false", "num_steps": "32", "activation": "tanh"}) == [
        *("--hidden", "64", "64", "--no-shared", "--num-steps", "32", "--activation", "tanh")
    ]


@pytest.mark.parametrize(
    ("word", "wrong"),
    [
        ("clip", "NAME=LOW..HIGH"),
        ("clipp=0.1,0.2", "did you mean 'clip'"),
        ("clip=0.2..0.1", "ends before"),
        ("epochs=1.5..3", "whole number"),
        ("shared=0..1", "no number"),
        ("clip=a..b", "no range"),
        ("clip=0.1", "two different values"),
        ("learning_rate=1e-4:1e-3", "is neither a range, learning_rate=LOW..HIGH, nor"),
    ],
)
def test_what_cannot_be_searched_is_named(word, wrong):
    with pytest.raises(ValueError, match=wrong):
        parsed([word], "ppo")


def test_trials_of_self_play_are_not_compared(tmp_path, capsys):
    about = ["sweep", "ppo", "ConnectFourPlayers", "--search", "clip=0.1..0.2", "--folder", str(tmp_path / "s")]
    few = ["--trials", "1", "--total-steps", "64", "--num-envs", "4", "--num-steps", "8"]
    assert main([*about, *few, "--self-play"]) == 2
    assert "nothing for the trials of a sweep: each of them has opponents of its own" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()
    (tmp_path / "settings.toml").write_text("self_play = true")
    main([*about, *few, "--config", str(tmp_path / "settings.toml")])
    assert "nothing for the trials of a sweep" in "".join(capsys.readouterr())


def test_a_sweep_prunes_goes_on_and_names_the_best(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    search = ["--search", "learning_rate=1e-6..1e-1", "--folder", "s"]
    assert main([*COMMAND, *search, "--trials", "7"]) == 0
    first = capsys.readouterr().out
    rows = [line.split() for line in first.splitlines() if line[:1].isdigit()]
    states = [row[-2] for row in rows]
    assert len(rows) == 7 and "pruned" in states and states[:4] == ["complete"] * 4
    best = max((row for row in rows if row[-2] == "complete"), key=lambda row: float(row[2]))
    assert f"best: trial {best[0]}" in first and "--learning-rate" in first.splitlines()[-1]
    pruned = next(row for row in rows if row[-2] == "pruned")
    assert int(pruned[2]) < 800 and (Path(pruned[-1]) / "last").is_dir()
    assert main([*COMMAND, *search, "--trials", "8"]) == 0
    again = capsys.readouterr().out
    assert again.count("score") + again.count("pruned") and "trial 7" in again and "trial 6:" not in again
    assert main([*COMMAND, *search, "--trials", "9", "--gamma", "0.5"]) == 2
    assert "flags" in capsys.readouterr().err
    assert main([*COMMAND, *search, "--trials", "9", "--learning-rate", "0.5"]) == 2
    assert "leave out the flag" in capsys.readouterr().err


def test_lists_are_tried_in_all_combinations_before_one_is_tried_again():
    space = parsed(["rnn_size=16,32,64", "shared=true,false", "clip=0.1..0.2"], "ppo")
    all_of_them = [tuple(values.items()) for values in combinations(space, 6)]
    assert len([*combinations(space, 5)]) == 3  # a search goes on
    del space["clip"]
    assert [*combinations(space, 5)] == [*map(dict, all_of_them)]
    assert len({*all_of_them}) == 6 and {dict(x)["rnn_size"] for x in all_of_them[:3]} == {"16", "32", "64"}
    assert {dict(x)["shared"] for x in all_of_them[:2]} == {"true", "false"}
    assert [*combinations(parsed(["clip=0.1..0.2"], "ppo"), 9)] == []


def test_as_many_trials_as_values_have_each_value_once(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    search = ["--search", "epochs=1,2,3", "clip=0.1..0.2", "--folder", "s"]
    assert main([*COMMAND, *search, "--trials", "2"]) == 0
    assert "trial 1: epochs=2, clip=0.1" in capsys.readouterr().out
    assert main([*COMMAND, *search, "--trials", "3"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line[:1].isdigit()]
    assert [row[1] for row in rows] == ["1", "2", "3"] and len({row[2] for row in rows}) == 3


def test_settings_that_follow_in_some_trials_are_told_once(tmp_path, capsys):
    words = ["sweep", "ppo", "CartPole-v1", "--num-envs", "8", "--recurrent", "gru", "--rnn-size", "8", "--hidden", "8"]
    words += ["--total-steps", "2_048", "--final-episodes", "1", "--target-return", "none", "--trials", "2"]
    words += ["--folder", str(tmp_path), "--num-steps", "64", "--epochs", "1"]
    search = ["--search", "sequence_length=8,64"]
    assert main([*words, *search, "--no-registered"]) == 0
    said = capsys.readouterr().out
    assert said.count("these followed from the settings of a trial") == 1
    assert re.search(r"minibatch_size as it was in [01]; minibatch_size 512 in [01]", said)
    assert sweep._differing({0: {"epochs": 2}, 1: {"epochs": 2}}) == ""


def test_an_unknown_environment_is_refused_before_any_trial(tmp_path, capsys):
    assert main(["sweep", "ppo", "CartPile-v1", "--search", "learning_rate=1e-4..1e-2", "--folder", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert "no environment 'CartPile-v1'; did you mean" in said.err and not said.out and not [*tmp_path.iterdir()]


def test_an_interrupted_trial_is_made_again(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    search = ["--search", "learning_rate=1e-6..1e-1", "--folder", "s", "--trials", "2"]
    carry_out = trials.carry_out

    def interrupted(*arguments):
        outcome = carry_out(*arguments)
        return trials.Outcome(outcome.path, None, outcome.steps, "SIGINT", True)

    monkeypatch.setattr(trials, "carry_out", interrupted)
    assert main([*COMMAND, *search]) == 0
    assert "the same command goes on" in capsys.readouterr().out
    monkeypatch.setattr(trials, "carry_out", carry_out)
    assert main([*COMMAND, *search]) == 0
    capsys.readouterr()
    values = [line["params"] for line in journal(Path("s")) if "params" in line]
    import optuna
    from optuna.storages.journal import JournalFileBackend

    storage = optuna.storages.JournalStorage(JournalFileBackend("s/study.jsonl"))
    made = optuna.load_study(study_name="s", storage=storage).trials
    assert [trial.state.name for trial in made] == ["FAIL", "COMPLETE", "COMPLETE"]
    assert made[0].params == made[1].params != made[2].params and values is not None


def test_a_journal_without_its_end_is_mended_and_other_damage_named(tmp_path):
    def study():
        return sweep._study(tmp_path, sweep.Sweep("ppo", "CartPole-v1", ()), {}, [])

    whole = study()
    whole.set_user_attr("x", 1)
    whole.set_user_attr("y", 2)
    path = tmp_path / "study.jsonl"
    os.truncate(path, path.stat().st_size - 5)  # killed while it wrote
    (tmp_path / "study.jsonl.lock").symlink_to(path)
    cut = study()
    assert cut.user_attrs["x"] == 1 and "y" not in cut.user_attrs
    cut.set_user_attr("z", 3)
    assert study().user_attrs["z"] == 3
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], lines[1][:10] + "\n", *lines[2:]]))
    with pytest.raises(ValueError, match=r"line 2 of .*study.jsonl is damaged"):
        study()


def test_a_full_disk_is_named_with_its_file(tmp_path, capsys, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sweep, "_study", full)
    words = ["sweep", "ppo", "CartPole-v1", "--search", "gamma=0.9,0.99", "--folder", str(tmp_path / "s")]
    assert main(words) == 2
    assert f"cannot write the sweep: No space left on device: '{tmp_path}/s/study.jsonl'" in capsys.readouterr().err


def test_a_trial_that_fails_does_not_end_the_others():
    def train(arguments, quiet, each):
        if arguments == ["fails"]:
            raise RuntimeError("an environment died")
        return SimpleNamespace(path="a", steps=5, reason="total_steps", interrupted=False), None

    outcomes = {}
    tasks = iter([([word], lambda *_: False) for word in ("fails", "a")])
    trials.Here(train).run(tasks, outcomes.__setitem__)
    assert "an environment died" in outcomes[0].error and outcomes[1].path == "a"


@pytest.mark.slow
def test_trials_side_by_side(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    search = ["--search", "learning_rate=1e-6..1e-1", "--folder", "s", "--trials", "4", "--jobs", "2"]
    assert main([*COMMAND, *search]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line[:1].isdigit()]
    assert len(rows) == 4 and len({row[-1] for row in rows}) == 4


def _killed_at_first(arguments, quiet, each):
    if arguments == ["die"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return SimpleNamespace(path=arguments[0], steps=5, reason="total_steps", interrupted=False), SimpleNamespace(
        mean=1.0
    )


def test_a_killed_process_gives_its_place_to_another():
    words, outcomes = ["die", "a", "die", "b", "die", "c"], {}
    tasks = iter([([word], lambda *_: False) for word in words])
    trials.Elsewhere(_killed_at_first, jobs=2).run(tasks, outcomes.__setitem__)
    assert [outcomes[number].error for number in (0, 2, 4)] == ["the process of this trial was killed"] * 3
    assert [(outcomes[number].path, outcomes[number].score) for number in (1, 3, 5)] == [("a", 1), ("b", 1), ("c", 1)]
