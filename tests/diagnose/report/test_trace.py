"""The trace for Chrome and Perfetto."""

from __future__ import annotations

import json

from helpers.profiles import profile, worker

from headrace.diagnose.report import trace


def test_every_span_is_an_event_in_microseconds_on_its_thread(tmp_path):
    made = profile(worker(1, 0.5))
    events = json.loads(trace.save(made, tmp_path).read_text())["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    assert len(complete) == sum(len(lane.spans) for lane in made.lanes)
    first = made.training_thread.spans[0]
    assert complete[0]["name"] == "environment" and complete[0]["args"]["detail"] == "CartPoleEnv.step"
    assert complete[0]["ts"] == first.start * 1e6 and complete[0]["dur"] == round((first.end - first.start) * 1e6, 1)
    assert {event["pid"] for event in complete} == {100, 201}


def test_threads_and_processes_have_names():
    events = trace.trace(profile(worker(1, 0.5)))["traceEvents"]
    names = {(event["name"], event["args"].get("name")) for event in events if event["ph"] == "M"}
    assert ("process_name", "script (100)") in names
    assert ("process_name", "worker 1 (201)") in names
    assert ("thread_name", "main") in names


def test_series_are_counters():
    counters = [event for event in trace.trace(profile())["traceEvents"] if event["ph"] == "C"]
    assert len(counters) == 500
    assert counters[3]["args"] == {"cores": 1.0} and counters[3]["ts"] == 300_000.0
