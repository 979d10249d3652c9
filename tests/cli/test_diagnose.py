"""`headrace diagnose` from the outside."""

from __future__ import annotations

import json

import pytest
from helpers.profiles import SEEN, profile

from headrace.cli.diagnose import split
from headrace.cli.main import main

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
while "forever" in sys.argv or not seen():
    environment.step(0)
    time.sleep(0.004)
"""


@pytest.mark.parametrize(
    ("words", "flags", "script"),
    [
        (["train.py", "--lr", "1"], [], ["train.py", "--lr", "1"]),
        (["--seconds", "3", "train.py", "--seconds", "9"], ["--seconds", "3"], ["train.py", "--seconds", "9"]),
        (["--seconds=3", "--json", "train.py"], ["--seconds=3", "--json"], ["train.py"]),
        (["--skip", "1", "-m", "a.b", "--json"], ["--skip", "1"], ["-m", "a.b", "--json"]),
        (["--json", "--", "-odd.py"], ["--json"], ["-odd.py"]),
        (["--help"], ["--help"], []),
    ],
)
def test_flags_before_the_script_are_the_diagnosis_s_and_the_rest_is_the_script_s(words, flags, script):
    assert split(words) == (flags, script)


def test_an_unmodified_script_gets_its_report(tmp_path, capfd):
    (tmp_path / "loop.py").write_text(LOOP)
    output = tmp_path / "out"
    words = ["--skip", "0", "--output", str(output), str(tmp_path / "loop.py"), "--seconds", "7"]
    assert main(["diagnose", *words]) == 0
    said = capfd.readouterr().out
    assert "arguments ['--seconds', '7']" in said
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
    assert main(["diagnose", "--json", "--output", str(tmp_path), str(tmp_path)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["headline"] == "Most of the time goes into environments: 71 %."
    assert said["shares"]["environment"] == pytest.approx(0.71)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seconds", "0", "x.py"], "--seconds is 0.0: give a number above 0"),
        (["--rate", "-1", "x.py"], "--rate is -1.0"),
        (["nowhere.py"], "nowhere.py"),
    ],
)
def test_errors_are_one_line_that_says_what_to_do(words, message, tmp_path, capsys):
    assert main(["diagnose", "--output", str(tmp_path / "out"), *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_a_script_is_asked_for(capsys):
    assert main(["diagnose"]) == 2
