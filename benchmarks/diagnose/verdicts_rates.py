"""Findings from the scripts' own steps per second: gains of remedies, shares of parts, and the cost of a diagnosis."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from benchmarks.common import Row
from benchmarks.diagnose.verdicts_scripts import FOLDER, changed

STATED = r"([\d.]+) steps/s"  # in the words of some scripts, at their end
RATES = ('{"rate"', '{"steps_per_second"')  # the beginnings of the line that a script ends with
GAINS = ("script", "predicted", "bound", "gained", "low", "high", "inside", "above")
ABLATED = ("script", "part", "share", "low", "high")
OVERHEAD = ("script", "overhead", "low", "high", "turns")
SECONDS = {"planted": 3.0, "ablated": 6.0}  # of counted steps in a run
LEAST = 0.8  # of a prediction: a gain is inside the printed range from there up to the bound
BY_ENVIRONMENT = ("s03_jax_swingup", "s05_sb3_pendulum", "s09_rover_td3", "s18_league_play")  # ablated: by REMEDY=1
# scripts whose first remedy has a prediction, and is applied for it: the planted ones by `change`
APPLIED = (
    "sb3_ppo",
    "sb3_dqn",
    "sb3_a2c",
    "tianshou_dqn",
    "skrl_ppo",
    "cleanrl_reinforce",
    "accelerate_launched",
    "trainer_thread",
    "loads_first",
    "clock_tick",
    "torch_fsync",
    "sb3_limited",
    "sbx_dqn",
    "cleanrl_eval",
    "lightning_eval",
    "spawned_learner",
    *BY_ENVIRONMENT,
)


def gains(script: Path, truth: Row, verdict: Callable[[], Row], options: Namespace) -> list[Row]:
    """The gain of the first remedy, after a verdict that predicts it at the same load; [] where none is applied.

    gained, low, high: steps per second with the remedy divided by those without, median, lowest and highest of turns.
    inside: whether the median is in the printed range. above: whether all turns are above the bound.
    """
    if script.stem not in APPLIED:
        return []
    said = verdict()
    if "change" in truth:
        found = _of_changes(script, truth["change"], options, options.gains)
    else:
        found = ratio(script, script, {"REMEDY": "1"}, options, options.gains)
    predicted, bound = (said["predicted"], said["bound"]) if said.get("first_right", True) else (None, None)
    more = {"first": said["first"], "predicted": predicted, "bound": bound if predicted else None}
    if predicted:
        inside = LEAST * predicted <= found["gained"] <= bound
        more |= {"inside": inside, "above": found["low"] > bound}
    return [found | more]


def ablations(script: Path, truth: Row, options: Namespace) -> list[Row]:
    """The share of the time of each part of a script that can be left out, by its steps per second without it."""
    found, parts = [], truth.get("parts", ())
    for part in parts:
        if isinstance(parts, dict):
            gained = _of_changes(script, parts[part], options, options.ablations)
        else:
            gained = ratio(script, script, {"ABLATE": part}, options, options.ablations)
        shares = {name: 1 - 1 / gained[key] for name, key in (("share", "gained"), ("low", "low"), ("high", "high"))}
        found.append({"script": script.stem, "part": part} | shares)
    return found


def overhead(script: Path, options: Namespace) -> list[Row]:
    """Steps per second without the diagnosis divided by those under it, less 1, in turns; [] where none are printed."""
    seconds = {"SECONDS": str(options.seconds)}
    costs = []
    for turn in range(options.overhead):
        alone, diagnosed = (rate(script, options.python, seconds, under) for under in _order(turn))
        if turn % 2:
            alone, diagnosed = diagnosed, alone
        if alone is None or diagnosed is None:
            return []
        costs.append(alone / diagnosed - 1)
    spread = {"overhead": statistics.median(costs), "low": min(costs), "high": max(costs)}
    return [{"script": script.stem, "turns": len(costs)} | spread]


def _order(turn: int) -> tuple[bool, bool]:
    """Choose which runs of a turn are diagnosed, (first, second). The diagnosed one comes first in every other turn."""
    return (bool(turn % 2), not turn % 2)


def _of_changes(script: Path, changes: list[list[str]], options: Namespace, turns: int) -> Row:
    with tempfile.TemporaryDirectory() as temporary:
        mended = Path(temporary, script.name)
        mended.write_text(changed(script.read_text(), changes, script.stem))
        return ratio(script, mended, {}, options, turns)


def ratio(script: Path, other: Path, variables: dict[str, str], options: Namespace, turns: int) -> Row:
    """Steps per second of another script, or with other variables, divided by those of a script, in turns."""
    seconds = {"SECONDS": str(SECONDS["ablated" if variables else "planted"])}
    ratios = []
    for _ in range(turns):
        before, after = rate(script, options.python, seconds), rate(other, options.python, seconds | variables)
        if before is None or after is None:
            raise RuntimeError(f"{script} printed no rate")
        ratios.append(after / before)
    return {"script": script.stem, "gained": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}


def rate(script: Path, python: str, variables: dict[str, str], diagnosed: bool = False) -> float | None:
    """Steps per second that a script prints at its end; None where it prints none."""
    environment = dict(os.environ) | {"PYTHONPATH": str(FOLDER), "RAY_ADDRESS": "local"} | variables
    command = [python, str(script)]
    with tempfile.TemporaryDirectory() as report:
        if diagnosed:
            diagnose = [sys.executable, "-m", "headrace", "diagnose", "--seconds", "400", "--skip", "0"]
            command = [*diagnose, "--python", python, "--output", report, str(script)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    lines = [line for line in done.stdout.splitlines() if line.startswith(RATES)]
    time.sleep(0.2)
    if not lines and (stated := re.findall(STATED, "\n".join(_own(done.stdout)))):
        return float(stated[-1])
    if not lines:
        print(f"{script.name} printed no rate: {done.stderr[-300:]}", file=sys.stderr)
        return None
    found = json.JSONDecoder().raw_decode(lines[0])[0]  # another process may have written behind it
    return float(found.get("whole_run_steps_per_second") or found.get("rate") or found["steps_per_second"])


def _own(output: str) -> list[str]:
    """The lines of a script's output that are not of a report, whose headline has shares and steps per second, too."""
    return [line for line in output.splitlines() if "%" not in line]
