"""Predicted gains against measured ones: the first remedy is applied to a script.

The scripts count their own iterations in a given time; only the prediction comes from the sampler. Both variants run
several times alternately, and the best of each counts, because other programs can only slow them down.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from diagnose import remedied

from headrace.diagnose.record import run_script
from headrace.diagnose.verdict.profile_facts import Facts
from headrace.diagnose.verdict.remedies import remedies

PROFILED, MEASURED, WARM_UP = 10.0, 3.0, 2.0  # s
ROUNDS = 3
TOLERANCE = 0.25  # of the gain that was predicted
NOISE = 1.03  # tolerance of bounds for the variation of a busy machine


def rate(script: Path, variant: str) -> float:
    """Turns a second of a script, as it counts them itself."""
    output = script.with_suffix(f".{variant}.json")
    command = [sys.executable, str(script), variant, str(MEASURED), str(output)]
    subprocess.run(command, check=True, capture_output=True)
    return json.loads(output.read_text())


def outcome(name: str, text: str, folder: Path) -> dict[str, float | str | None]:
    """The first remedy of a script: predicted gain, bound, and what it gains when it is applied."""
    script = folder / f"script_{name.replace(' ', '_')}.py"
    script.write_text(text)
    words = [str(script), "as it is", "1000", str(folder / "none.json")]
    profile = run_script.measure(words, seconds=PROFILED, skip=WARM_UP)
    first = remedies(Facts(profile))[0]
    rounds = [(rate(script, "mended"), rate(script, "original")) for _ in range(ROUNDS)]
    mended, original = map(max, zip(*rounds, strict=True))
    measured = mended / original
    return {"name": name, "title": first.title, "gain": first.gain, "bound": first.bound, "measured": measured}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("group", ["first", "fresh"])
def test_the_first_remedy_gains_what_was_predicted_and_never_more_than_its_bound(group, tmp_path):
    start, scripts = {"first": (remedied.TURNS, remedied.FIRST), "fresh": (remedied.LOOP, remedied.FRESH)}[group]
    found = [outcome(name, start + script, tmp_path) for name, (_, script) in scripts.items()]
    print(*found, sep="\n")
    assert [one["name"] for one in found if scripts[one["name"]][0] not in one["title"]] == []
    assert [one for one in found if one["measured"] > one["bound"] * NOISE] == []
    far = [one for one in found if not one["gain"] or abs(one["measured"] / one["gain"] - 1) > TOLERANCE]
    assert len(far) <= 1, far
