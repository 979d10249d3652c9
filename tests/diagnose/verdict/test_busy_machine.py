"""A thread that had no core is told so, whether its script trained or not."""

from __future__ import annotations

import pytest
from helpers.profiles import SECONDS, profile

from headrace.diagnose.verdict.profile_facts import Facts
from headrace.diagnose.verdict.verdict import judge


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize(("queued", "said"), [(0.6, True), (0.05, False)])
def test_time_without_a_core_is_told(trained: bool, queued: float, said: bool) -> None:
    shares = {"START_UP": 0.2, "FORWARD": 0.8} if trained else {"START_UP": 1.0}
    made = profile(**shares, counters={"training_began": float(trained)})
    made.training_thread.queued_seconds = queued * SECONDS
    verdict = judge(Facts(made))
    assert verdict.headline.startswith("Training had not begun") != trained
    assert any("had no core 60 % of the time" in note for note in verdict.notes) == said
