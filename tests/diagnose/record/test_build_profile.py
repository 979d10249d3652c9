"""Profiles built from spool files that the tests write."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.profiles import lane

from headrace.diagnose.profile.profile import Ending, Exit, Profile
from headrace.diagnose.profile.role_patterns import Hints
from headrace.diagnose.record import build_profile
from headrace.diagnose.record.gpu import GpuMonitor
from headrace.diagnose.record.outside import OutsideRecorder
from headrace.diagnose.record.processes import ProcessMonitor

PID, SECONDS = 4242, 6.0
SCRIPT = [
    ["code", 0, "/me/train.py", "main", "__main__", 1, []],
    ["place", 1, 0, 3, 3, 0, 9, {}],
    ["stack", 2, [1]],
]


def profile(folder: Path, sampled: float, *more: list) -> Profile:
    """The profile of a script of SECONDS, with ten samples per second for the first `sampled` seconds."""
    samples = [[PID, round(0.1 * (tick + 1), 6), 0.1, 2] for tick in range(round(10 * sampled))]
    records = [["process", PID, os.getpid(), 0.0, "3.11.2"], *SCRIPT, ["samples", samples], *more]
    (folder / f"{PID}-0.jsonl").write_text("\n".join(map(json.dumps, records)))
    monitor, exit = ProcessMonitor(PID), Exit(Ending.EXIT)
    window, outside = build_profile.Window(1.7e9, 0.0, SECONDS, 0.0), OutsideRecorder(monitor, folder)
    recording = build_profile.Recording(folder, monitor, outside, GpuMonitor(), window, ["train.py"], exit)
    return build_profile.build(recording, Hints())


@pytest.mark.parametrize("before", [False, True])
def test_what_plays_before_the_scripts_updates_is_no_training_yet(before: bool) -> None:
    playing = lane(PID, ENVIRONMENT=0.3, SAVING=0.7)
    loop = SimpleNamespace(began=lambda: None, is_before_updates=before)
    window = build_profile.Window(1.7e9, 0.0, SECONDS, 0.0)
    found = build_profile._began([playing], {PID: SimpleNamespace(loop=loop)}, window)  # type: ignore[dict-item]
    assert (found is None) == before


@pytest.mark.parametrize(("roles", "began"), [(("SAVING", "FORWARD"), 30.0), (("BACKWARD", "FORWARD"), 0.0)])
def test_what_plays_before_the_training_loop_is_set_up_unless_it_learns(roles: tuple[str, str], began: float) -> None:
    first, second = roles
    made = lane(PID, turns=1, ENVIRONMENT=0.3, **{first: 0.3, second: 0.4})
    loop = SimpleNamespace(began=lambda: 31.0, is_before_updates=False, entered=30.0)
    window = build_profile.Window(1.7e9, 0.0, 50.0, 0.0)
    assert build_profile._began([made], {PID: SimpleNamespace(loop=loop)}, window) == began  # type: ignore[dict-item]


def about_samples(made: Profile) -> list[str]:
    return [line for line in made.limitations if "samples" in line]


def test_samples_that_cover_less_than_the_window_are_reported(tmp_path: Path) -> None:
    (said,) = about_samples(profile(tmp_path, sampled=0.5))
    assert "cover 0.5 s of 6.0 s" in said


@pytest.mark.parametrize("sampled", [5.5, 6.0])
def test_the_last_samples_of_a_process_that_was_killed_are_not_missed(sampled: float, tmp_path: Path) -> None:
    made = profile(tmp_path, sampled)
    assert about_samples(made) == [] and made.training_thread.total == pytest.approx(sampled)


def test_the_end_of_the_interpreter_is_not_part_of_the_script(tmp_path: Path) -> None:
    assert about_samples(profile(tmp_path, 3.0, ["end", 3.1, "", ""])) == []
    assert len(about_samples(profile(tmp_path, 3.0, ["end", 5.9, "", ""]))) == 1


def test_a_long_call_counts_as_all_ticks_during_it(tmp_path: Path) -> None:
    waiting = ["samples", [[PID, SECONDS, 3.0, 2]]]
    assert profile(tmp_path, 3.0, ["cost", 0.0, 0.1]).training_thread.samples == 30
    assert profile(tmp_path, 3.0, waiting, ["cost", 0.0, 0.1]).training_thread.samples == 60
