"""Python's garbage collections are a part of their own, whether the script asks for them or Python begins them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.diagnose.profile.profile import Role
from headrace.diagnose.record.run_script import measure
from headrace.diagnose.verdict import round_trip
from headrace.diagnose.verdict.profile_facts import Facts
from headrace.diagnose.verdict.verdict import judge

SCRIPT = """
import gc, json, sys, time
spent, began = [0.0], [0.0]

def watch(phase, _):
    if phase == "start":
        began[0] = time.perf_counter()
    else:
        spent[0] += time.perf_counter() - began[0]

def compute():
    total = 0
    for i in range(100_000):
        total += i * i

gc.callbacks.append(watch)
kept = [[] for _ in range({kept})]
spent[0], start = 0.0, time.perf_counter()
while time.perf_counter() < start + 5.0:
    compute()
    {collects}
json.dump(spent[0] / (time.perf_counter() - start), open(sys.argv[1], "w"))
"""
ASKED = {"kept": 200_000, "collects": "gc.collect()"}
OF_ITSELF = {"kept": 0, "collects": "held = [[] for _ in range(200_000)]"}
NEAR = 0.1  # as a share


@pytest.mark.parametrize("parts", [ASKED, OF_ITSELF], ids=["asked", "of itself"])
def test_collections_have_the_share_that_the_script_measures(parts: dict[str, str], tmp_path: Path) -> None:
    script, clock = tmp_path / "script.py", tmp_path / "share.json"
    script.write_text(SCRIPT.format(**parts))
    profile = measure([str(script), str(clock)], seconds=60.0, skip=1.0, start_up=0.0)
    lane, true = profile.training_thread, json.loads(clock.read_text())
    assert abs(lane.seconds.get(Role.GARBAGE, 0.0) / lane.total - true) < NEAR
    assert true > 0.2


def test_a_script_that_collects_all_the_time_is_told_to_collect_less(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(kept=2_000_000, collects="gc.collect()"))
    profile = measure([str(script), str(tmp_path / "share.json")], seconds=60.0, skip=1.5, start_up=0.0)
    verdict = judge(Facts(profile, round_trip.measure()))
    assert "garbage collection" in verdict.headline
    first = verdict.remedies[0]
    assert first.title == "Collect garbage ten times less often"
    assert "gc.freeze()" in first.change
