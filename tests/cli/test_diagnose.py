"""`headrace diagnose` from the outside."""

from __future__ import annotations

import json
import sys

import pytest
from helpers.profiles import SEEN, profile

from headrace.cli.diagnose import Diagnose, _try, exit_code, output_folder, split
from headrace.cli.main import main
from headrace.diagnose.profile.profile import Ending, Exit
from headrace.diagnose.record.trials import Trials, compare
from headrace.diagnose.report import files

LOOP = f"""{SEEN}
import os, sys, time
import gymnasium

class Slow(gymnasium.Env):
    def reset(self, **options):
        return 0, {{}}
    def step(self, action):
        until = time.perf_counter() + 0.004
        while time.perf_counter() < until:
            pass
        return 0, 0.0, False, False, {{}}

print("arguments", sys.argv[1:])
environment = Slow()
environment.reset()
began = time.process_time()  # samples are of computing, and on a busy machine a second has little of that
while "forever" in sys.argv or time.process_time() < began + 0.5 or not seen():
    environment.step(0)
    time.sleep(0.004)
"""


@pytest.mark.parametrize(
    ("words", "flags", "script"),
    [
        (["train.py", "--lr", "1"], [], ["train.py", "--lr", "1"]),
        (["--seconds", "3", "train.py", "--seconds", "9"], ["--seconds", "3"], ["train.py", "--seconds", "9"]),
        (["--seconds=3", "--try", "train.py"], ["--seconds=3", "--try"], ["train.py"]),
        (["--skip", "1", "-m", "a.b", "--json"], ["--skip", "1"], ["-m", "a.b", "--json"]),
        (["--json", "-", "--", "-odd.py"], ["--json", "-"], ["-odd.py"]),
        (["--traceback", "a.py", "--traceback"], ["--traceback"], ["a.py", "--traceback"]),
        (["--compare", "a", "b"], ["--compare", "a", "b"], []),
        (["--help"], ["--help"], []),
    ],
)
def test_flags_before_the_script_are_the_diagnosis_s_and_the_rest_is_the_script_s(words, flags, script):
    assert split(words) == (flags, script)


def test_an_unmodified_script_gets_its_report(tmp_path, capfd):
    (tmp_path / "loop.py").write_text(LOOP)
    output = tmp_path / "out"
    words = [
        "--skip",
        "0",
        "--output",
        str(output),
        sys.executable,
        str(tmp_path / "loop.py"),
        "--seconds",
        "7",
        "--traceback",
    ]
    assert main(["diagnose", "--fail-if", "environment>0.01", *words]) == 1
    said = capfd.readouterr().out
    assert "arguments ['--seconds', '7', '--traceback']" in said
    assert "report.html" in said
    assert sorted(path.name for path in output.iterdir()) == [
        "profile.json",
        "report.html",
        "trace.json",
        "verdict.json",
    ]
    assert json.loads((output / "verdict.json").read_text())["headline"] in said.replace("\n", " ")


@pytest.mark.slow
def test_what_a_script_does_half_of_the_time_has_half_of_it(tmp_path, capfd):
    (tmp_path / "loop.py").write_text(LOOP)
    words = ["--seconds", "6", "--skip", "0.5", "--output", str(tmp_path), str(tmp_path / "loop.py"), "forever"]
    assert main(["diagnose", *words]) == 0
    assert "Remove the sleeping" in capfd.readouterr().out
    shares = json.loads((tmp_path / "verdict.json").read_text())["shares"]
    assert shares["environment"] + shares["idle"] > 0.9
    assert 0.3 < shares["environment"] < 0.7


def test_an_earlier_diagnosis_is_judged_again(tmp_path, capsys):
    made = profile()
    made.save(tmp_path)
    assert main(["diagnose", "--json", "-", "--markdown", str(tmp_path / "report.md"), str(tmp_path)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["headline"] in (tmp_path / "report.md").read_text()
    assert said["headline"] == "Most of the time goes into environments: 71 %."
    assert said["shares"]["environment"] == pytest.approx(0.71)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seconds", "0", "x.py"], "--seconds is 0.0: give a number above 0"),
        (["--rate", "-1", "x.py"], "--rate is -1.0"),
        (["nowhere.py"], "there is no script 'nowhere.py', and no program of that name"),
        (["python", "nowhere.py"], "there is no script 'nowhere.py'"),
        (["--fail-if", "evaluations>0.3", "x.py"], "there is no figure 'evaluations'; there are copy"),
        (["--fail-if", "evaluation", "x.py"], 'write a condition such as "evaluation>0.3"'),
        (["--pid", "1", "x.py"], "name one thing to diagnose"),
        (["--compare", "here", "there"], "here is no folder of a diagnosis"),
        (["--hints", "h.toml", "SAVED"], "--hints h.toml would change nothing: "),
        (["--try", "SAVED"], "--try runs the script again"),
        (["--output", "SAVED", "x.py"], "holds an earlier diagnosis: name another folder"),
    ],
)
def test_errors_are_one_line_that_says_what_to_do(words, message, tmp_path, capsys):
    profile().save(tmp_path)
    assert main(["diagnose", *(str(tmp_path) if word == "SAVED" else word for word in words)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_a_script_is_asked_for(capsys):
    assert main(["diagnose"]) == 2


@pytest.mark.parametrize(
    ("ending", "code", "expected"),
    [
        (Ending.EXIT, 3, 3),
        (Ending.EXCEPTION, 1, 1),
        (Ending.SIGNAL, 9, 137),
        (Ending.TIME_LIMIT, 0, 0),
        (Ending.INTERRUPT, 0, 0),
    ],
)
def test_the_exit_code_is_the_script_s(ending, code, expected):
    made = profile()
    made.exit = Exit(ending, code)
    assert exit_code(made) == expected


def test_no_report_replaces_another(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "FOLDER", tmp_path)
    names = []
    for words in (("train.py",), ("python", "train.py"), ("-m", "a.train"), ("torchrun", "--standalone", "other.py")):
        folder = output_folder(Diagnose(words))
        folder.mkdir()
        names.append(folder.name)
    assert names == ["train_1", "train_2", "train_3", "other_1"]


def test_two_diagnoses_are_compared(tmp_path, capsys):
    for name, rate, shares in (
        ("old", 900.0, {"EVALUATION": 0.6, "FORWARD": 0.4}),
        ("new", 1800.0, {"EVALUATION": 0.1, "FORWARD": 0.9}),
    ):
        (tmp_path / name).mkdir()
        made = profile(counters={"env_rate": rate}, **shares)
        made.machine.versions["torch"] = name
        made.save(tmp_path / name)
    assert main(["diagnose", "--compare", str(tmp_path / "old"), str(tmp_path / "new")]) == 0
    said = capsys.readouterr().out
    assert "900 steps/s before, 1,800 steps/s after: 2.00x as fast." in said
    assert "| evaluation                 |      60 % |      10 % |    -50 pp |" in said
    assert "The versions differ: torch old and new." in said


def test_what_was_tried_comes_first(tmp_path, capsys):
    made = profile()
    trial = compare("OMP_NUM_THREADS=1", [100.0, 110.0, 100.0], [150.0, 154.0, 152.0])
    assert (trial.gain, trial.low, trial.high) == pytest.approx((1.472, 1.286, 1.686), abs=1e-3) and trial.pays
    files.write(made, tmp_path, Trials([trial], [], 6))
    said = capsys.readouterr().out.split("\n\n")
    assert said[0].strip().startswith("With OMP_NUM_THREADS=1 the script is 1.47x as fast: measured.")
    assert "OMP_NUM_THREADS=1 train.py" in said[1]
    page = (tmp_path / "report.html").read_text()
    assert page.index("1.29x to 1.69x") < page.index('<section id="verdict">')
    nothing = compare("OMP_NUM_THREADS=1", [100.0, 100.0], [101.0, 99.0])
    assert not nothing.pays
    files.write(made, tmp_path, Trials([nothing], [], 4))
    assert "Nothing that was tried gains more than its uncertainty" in " ".join(capsys.readouterr().out.split())


def test_without_torch_nothing_is_tried_and_no_runs_are_announced(tmp_path, capsys):
    script, made = tmp_path / "train.py", profile()
    script.write_text("pass\n")
    made.machine.versions.pop("torch")
    tried = _try(Diagnose(script=(str(script),)), made)
    assert not tried.found and tried.notes[0].endswith("the script did not import torch.")
    assert capsys.readouterr().err == ""
