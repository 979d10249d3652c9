"""Verdicts from few samples: as much as they tell, and no more."""

from __future__ import annotations

from helpers.profiles import profile

from headrace.diagnose.profile.profile import Ending, Exit
from headrace.diagnose.verdict.profile_facts import Facts
from headrace.diagnose.verdict.verdict import judge


def test_few_samples_give_no_verdict():
    made = profile(ENVIRONMENT=0.3, FORWARD=0.25, DATA=0.25, SAVING=0.2)
    made.training_thread.samples = 120
    verdict = judge(Facts(made))
    assert verdict.headline == "There are too few samples for a verdict: 120. Try a longer --seconds."
    assert verdict.remedies == [] and "CPU" not in verdict.bounds
    made.exit = Exit(Ending.EXIT)
    assert judge(Facts(made)).headline.endswith("Let the script do more, such as more training steps.")


def test_few_samples_are_enough_where_few_activities_may_be_the_largest():
    made = profile(ENVIRONMENT=0.5, FORWARD=0.4, DATA=0.1)
    made.training_thread.samples = 120
    assert judge(Facts(made)).headline.startswith(
        "The largest parts of the time go into environments, 50 %, and learning"
    )
    made = profile(INFERENCE=0.96, DATA=0.04)
    made.training_thread.samples = 120
    assert judge(Facts(made)).headline == "Most of the time goes into policy inference: 96 %."
    made.training_thread.samples = 15
    assert judge(Facts(made)).headline.startswith("There are too few samples")


def test_a_training_that_may_just_have_begun_has_too_few_samples():
    made = profile(INFERENCE=0.3, DATA=0.7, counters={"training_began": 0.0})
    assert judge(Facts(made)).headline.startswith("Training had not begun")
    made.training_thread.samples = 6
    assert judge(Facts(made)).headline.startswith("There are too few samples for a verdict: 6.")
