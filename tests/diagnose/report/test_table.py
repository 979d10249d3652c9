"""The report in a terminal."""

from __future__ import annotations

import io

from helpers.profiles import facts, profile, site, worker

from headrace.diagnose.profile.profile import Role
from headrace.diagnose.report import table
from headrace.diagnose.verdict.profile_facts import Facts
from headrace.diagnose.verdict.verdict import judge


def test_it_has_the_parts_the_verdict_and_the_remedies():
    made = facts(counters={"num_envs": 8})
    text = table.text(made, judge(made))
    assert "environment                   35.5       71 %  ██████████████████████████████" in text
    assert "1. Train CartPole-v1 in Headrace" in text or "1. Step" in text
    assert "Accuracy and limitations" in text


def test_no_line_but_code_is_wider_than_asked():
    made = facts(worker(1, 0.2), worker(2, 0.6), WAIT=0.6, FORWARD=0.4)
    lines = table.text(made, judge(made), width=72).splitlines()
    remedies = lines.index(next(line for line in lines if line.startswith("1. ")))
    assert max(map(len, lines[:remedies])) == 72


def test_a_number_stays_with_its_percent_sign():
    made = facts()
    for width in range(40, 100):
        assert not any(line.lstrip().startswith("%") for line in table.text(made, judge(made), width).splitlines())


def test_waiting_is_divided_into_what_environments_explain_and_the_rest():
    found = {row.title: row.share for row in table.rows(facts(worker(1, 0.5), WAIT=0.6, FORWARD=0.4))}
    assert found["waiting for environments"] == 0.5
    assert abs(found["other waiting"] - 0.1) < 1e-9
    assert abs(sum(found.values()) - 1) < 1e-9


def test_workers_are_listed_with_how_busy_they_are():
    made = facts(worker(1, 0.2), worker(2, 0.6), WAIT=0.6, FORWARD=0.4)
    assert "worker 2                      30.0       60 %" in table.text(made, judge(made))


def test_the_line_that_costs_most_is_named():
    made = profile()
    made.training_thread.sites = [site(Role.ENVIRONMENT, 5.0, "b()", 7), site(Role.ENVIRONMENT, 9.0, "a()", 8)]
    assert table.mostly(Facts(made), Role.ENVIRONMENT) == "train.py:8 a()"
    assert table.mostly(Facts(made), Role.DATA) == ""


def test_a_pipe_gets_plain_text():
    made, stream = facts(), io.StringIO()
    table.print_report(made, judge(made), stream)
    assert "\x1b" not in stream.getvalue()
    assert stream.getvalue() == table.text(made, judge(made)) + "\n"


def test_a_terminal_gets_colours_and_the_same_words():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    made, stream = facts(), Terminal()
    table.print_report(made, judge(made), stream)
    assert "Most of the time goes into environments" in stream.getvalue()


def test_a_script_that_was_not_seen_gives_a_report_all_the_same():
    made = profile()
    made.lanes = []
    assert "No samples were taken." in table.text(Facts(made), judge(Facts(made)))
