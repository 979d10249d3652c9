"""The verdict's text, and that it agrees with the figures."""

from __future__ import annotations

import pytest
from helpers.profiles import facts, lane, profile, site, worker

from headrace.diagnose.injected import cuda_kernels
from headrace.diagnose.profile.profile import Ending, Exit, Kind, Profile, Role
from headrace.diagnose.record import held_up
from headrace.diagnose.report import table
from headrace.diagnose.verdict.profile_facts import Facts
from headrace.diagnose.verdict.verdict import ending, judge


def test_a_slow_environment():
    verdict = judge(facts(counters={"num_envs": 8, "env_rate": 160}))
    assert verdict.headline == "Most of the time goes into environments: 71 %."
    assert "learning 20 % (forward 6 %, backward 8 %, optimizer 6 %)" in verdict.where
    assert "One core steps 8 environments one after another, 4.4 ms per step." in verdict.where
    assert verdict.bounds.startswith(
        "Stay on the CPU. A GPU can gain at most 1.43x: acting and learning take 29 % of the time."
    )
    assert verdict.notes[0].startswith("R = 3.5: 3.5 s of environment steps per second of learning.")


def test_processes_are_not_recommended_if_a_step_is_short():
    verdict = judge(Facts(profile(counters={"num_envs": 8, "env_rate": 18000}), round_trip=100e-6))
    assert (
        "Worker processes would be slower: a step takes 39 us, a round trip to another process 100 us."
        in verdict.notes[0]
    )


def test_waiting_for_environments_counts_as_environment_as_far_as_the_slowest_worker_explains_it():
    verdict = judge(facts(worker(1, 0.5), worker(2, 0.45), WAIT=0.6, FORWARD=0.4))
    assert verdict.headline == "The largest part of the time goes into environments: 50 %."
    assert "environments 50 % (50 % waiting for the processes that step them)" in verdict.where
    assert "waiting for others 10 %" in verdict.where


def test_a_straggler_is_noted():
    verdict = judge(facts(worker(1, 0.2), worker(2, 0.2), worker(3, 0.6), WAIT=0.62, FORWARD=0.38))
    assert "Worker 3 is slower than the other processes, which wait for it at every step." in verdict.notes


def test_nothing_to_gain():
    made = profile(FORWARD=0.4, BACKWARD=0.5, ENVIRONMENT=0.05, INFERENCE=0.05)
    made.machine.versions["headrace"] = "0.1.0"
    verdict = judge(Facts(made))
    assert verdict.headline == "Most of the time goes into learning: 90 %; no known remedy makes it 1.15x as fast."
    assert "What would help" not in verdict.bounds


def test_a_large_network_may_use_a_gpu():
    shares = {"FORWARD": 0.3, "BACKWARD": 0.4, "OPTIMIZER": 0.2, "ENVIRONMENT": 0.1}
    verdict = judge(facts(**shares, counters={"parameters": 10**7, "learning_batch": 256}))
    assert "Stay on the CPU" not in verdict.bounds
    assert "put the network on a GPU (not predicted)" in verdict.bounds


def test_a_small_network_stays_on_the_cpu_whatever_its_share():
    shares = {"FORWARD": 0.3, "BACKWARD": 0.4, "OPTIMIZER": 0.2, "ENVIRONMENT": 0.1}
    verdict = judge(facts(**shares, counters={"parameters": 9000, "learning_batch": 64}))
    assert "Stay on the CPU" in verdict.bounds
    assert "9,000 parameters and an update takes 3.5 million operations" in verdict.bounds


def test_time_of_unknown_role_is_the_headline_with_its_line():
    made = profile(OTHER=0.6, FORWARD=0.4)
    made.training_thread.sites = [site(Role.OTHER, 30.0, "mystery()", 77)]
    assert (
        judge(Facts(made)).headline == "60 % of the time goes into code whose role is not known, mostly at train.py:77."
    )


def test_activities_whose_order_is_within_the_sampling_error_are_named_together():
    made = profile(SAVING=0.2, INFERENCE=0.34, FORWARD=0.1, DATA=0.36)
    made.training_thread.samples = 400  # 5 points of error of each
    said = "The largest parts of the time go into data handling, 36 %, and policy inference, 34 %."
    assert judge(Facts(made)).headline == said
    made.training_thread.samples = 40_000  # half a point
    assert judge(Facts(made)).headline == "The largest part of the time goes into data handling: 36 %."


def test_three_activities_may_be_named_together_and_no_more():
    made = profile(SAVING=0.24, INFERENCE=0.25, FORWARD=0.25, DATA=0.26)
    made.training_thread.samples = 400
    said = "The largest parts of the time go into data handling, 26 %, learning, 25 %, and policy inference, 25 %."
    assert judge(Facts(made)).headline == said


def test_waiting_and_sleeping_are_named_with_what_takes_as_long_and_unknown_code_is_not():
    made = profile(WAIT=0.38, INFERENCE=0.35, OTHER=0.27)
    made.training_thread.samples = 400
    said = "The largest parts of the time go into waiting for others, 38 %, and policy inference, 35 %."
    assert judge(Facts(made)).headline.startswith(said)
    made = profile(IDLE=0.4, OTHER=0.39, FORWARD=0.21)
    made.training_thread.samples = 400
    assert judge(Facts(made)).headline.startswith("The script sleeps 40 % of the time.")


def test_a_script_that_always_learns_has_no_phases():
    # start-up, a fifth of the window, is no phase
    assert not [
        line
        for line in judge(facts(turns=1, START_UP=0.2, FORWARD=0.78, OTHER=0.02)).limitations
        if "Learning began" in line
    ]
    assert [
        line for line in judge(facts(turns=1, ENVIRONMENT=0.3, FORWARD=0.7)).limitations if "Learning began" in line
    ]


def test_start_up_is_left_out():
    verdict = judge(facts(START_UP=0.5, ENVIRONMENT=0.4, FORWARD=0.1))
    assert verdict.headline == "Most of the time goes into environments: 80 %."
    assert verdict.where.startswith("Shares of 25.0 s of training")


def test_a_script_that_ended_before_the_first_sample():
    made = profile()
    made.lanes, made.exit = [], Exit(Ending.EXCEPTION, 1, "ValueError: no such environment")
    verdict = judge(Facts(made))
    assert verdict.headline.startswith("No samples were taken. ")
    assert "ValueError: no such environment" in verdict.headline


def test_an_exception_before_the_training_is_the_headline_and_nothing_is_advised():
    made = profile(ENVIRONMENT=0.6, OTHER=0.4, counters={"training_began": 0.0})
    made.exit = Exit(Ending.EXCEPTION, 1, "KeyError: 'lr'")
    verdict = judge(Facts(made))
    assert verdict.headline.startswith("The script did not train.") and "KeyError: 'lr'" in verdict.headline
    assert not verdict.remedies


def test_an_exception_after_little_training_is_the_headline():
    made = profile(FORWARD=0.1, BACKWARD=0.1)
    made.training_thread.samples, made.exit = 17, Exit(Ending.EXCEPTION, 1, "KeyError: 'lr'")
    verdict = judge(Facts(made))
    assert verdict.headline.startswith("The script ended after") and "KeyError: 'lr'" in verdict.headline
    assert "too few samples for a verdict: 17." in verdict.headline and not verdict.remedies


def test_nvml_and_kernels_are_both_reported():
    made = profile(LAUNCH=0.5, FORWARD=0.5, counters={"cuda": 1}, gpu="H200")
    made.gpu = {"nvml_busy": 38.0, "memory_mb": 600.0} | cuda_kernels.figures([], 1.0) | {"kernel_busy": 2.0}
    made.gpu |= {"launches_per_second": 12_000.0, "kernel_windows": 5}
    said = " ".join(judge(Facts(made)).notes)
    assert "38 % busy" in said and "Kernels ran 2 % of the time" in said and "makes 12,000 kernel launches" in said
    first = judge(Facts(made)).remedies[0]
    assert first.title == "Train on the CPU" and "Kernels ran 2 % of the time" in first.why


@pytest.mark.parametrize(
    ("shares", "gpu", "leaves"),
    [
        (
            {"ENVIRONMENT": 0.4, "BACKWARD": 0.6},
            {"nvml_busy": 47.0, "kernel_busy": 1.0},
            False,
        ),  # one window
        ({"ENVIRONMENT": 0.4, "BACKWARD": 0.6}, {"nvml_busy": 47.0, "kernel_busy": 6.0, "kernel_windows": 5}, True),
        ({"ENVIRONMENT": 0.7, "BACKWARD": 0.3}, {"nvml_busy": 24.0, "kernel_busy": 18.0, "kernel_windows": 5}, False),
        ({"ENVIRONMENT": 0.4, "BACKWARD": 0.6}, {"nvml_busy": 3.0, "kernel_busy": 1.0}, True),
    ],
)
def test_a_gpu_is_left_only_where_it_is_known_to_idle_while_it_is_used(shares, gpu, leaves):
    made = profile(**shares, counters={"cuda": 1, "parameters": 25_000_000, "learning_batch": 512}, gpu="H100")
    made.gpu = {"memory_mb": 600.0, **cuda_kernels.figures([], 1.0), **gpu}
    assert ("Train on the CPU" in [remedy.title for remedy in judge(Facts(made)).remedies]) == leaves


def test_a_gpu_that_jax_uses_is_a_gpu():
    made = profile(FORWARD=0.9, DATA=0.1, gpu="H100")
    made.machine.versions, made.gpu = {"jax": "0.10.2"}, {"nvml_busy": 83.0, "memory_mb": 60_000.0}
    assert Facts(made).on_gpu and "a faster GPU" in judge(Facts(made)).bounds


def test_operations_count_the_positions_of_a_sequence_and_are_not_known_of_images():
    counters = {"parameters": 1000, "learning_batch": 2}
    assert facts(counters=counters | {"positions": 768}).operations == 6 * 1000 * 2 * 768
    assert facts(counters=counters | {"positions": 0}).operations is None


def test_waiting_of_one_kind_does_not_save_that_of_another():
    made = profile(IDLE=0.6, WAIT=0.3, OTHER=0.1)
    lane = made.training_thread
    lane.cpu_seconds, lane.wakes = 0.1 * lane.total, 5000.0
    (sleeping,) = [remedy for remedy in judge(Facts(made)).remedies if "sleeping" in remedy.title]
    assert sleeping.bound < 1 / (1 - 0.6 - 0.1 * 0.65 - 0.05)


def test_nothing_is_said_to_gain_nothing_where_much_is_guessed():
    made = profile(BACKWARD=0.6, DATA=0.1, SIDE=0.3)
    made.training_thread.guessed = {Role.SIDE: 0.3 * made.training_thread.total}
    headline = judge(Facts(made)).headline
    assert "no known remedy" not in headline and "30 % of the time is for is likely, not sure" in headline


def test_limitations_are_those_of_the_profile_and_the_sampling_error():
    limitations = judge(facts()).limitations
    assert "10,000 samples" in limitations[0] and "1.0 percentage points" in limitations[0]
    assert limitations[-1] == "native code is seen as the Python line that called it"


def test_a_thread_that_rarely_got_a_core_is_noted():
    made = profile()
    for span in made.training_thread.spans:
        span.on_cpu = 0.5
    assert any("was on a core 50 % of the time" in note for note in judge(Facts(made)).notes)


def test_every_ending_has_its_sentence():
    made = profile()
    for kind in Ending:
        made.exit = Exit(kind, 9, "")
        assert "60.0 s" in ending(made)


def test_a_saved_profile_has_the_same_verdict(tmp_path):
    made = profile()
    made.save(tmp_path)
    assert judge(Facts(Profile.load(tmp_path))) == judge(Facts(made))


def test_processes_that_were_not_sampled_are_not_taken_for_one_core():
    made = profile(ENVIRONMENT=0.5, FORWARD=0.5, counters={"num_envs": 4})
    for span in made.training_thread.spans:
        span.detail = span.detail.replace("CartPoleEnv.step", "SubprocVecEnv.step_async")
    verdict = judge(Facts(made))
    assert "Other processes step the environments, but no sample shows them doing so." in verdict.where
    assert not [remedy for remedy in verdict.remedies if "processes" in remedy.title]


def test_a_bound_without_meaning_is_not_given_as_a_number():
    verdict = judge(facts(FORWARD=0.995, LOGGING=0.005, counters={"parameters": 10**7, "learning_batch": 256}))
    assert "this profile does not bound what a GPU can gain" in verdict.bounds
    assert "put the network on a GPU (not predicted)" in verdict.bounds


def test_communication_is_not_part_of_the_time_of_a_step():
    made = facts(worker(1, 0.1), worker(2, 0.1), ENVIRONMENT=0.3, WAIT=0.2, FORWARD=0.5, counters={"env_rate": 1000.0})
    assert abs(made.step_seconds - 10.0 / 50_000) < 1e-9
    assert abs(made.ratio - 10.0 / 25.0) < 1e-9


def test_learning_in_one_call_has_no_parts():
    made = profile(FORWARD=0.9, INFERENCE=0.1)
    made.machine.versions["headrace"] = ""
    assert "forward" not in judge(Facts(made)).where  # no sampler could see them


def test_processes_that_step_environments_and_act_are_actors():
    actors = [lane(101 + n, Kind.WORKER, f"worker {n}", ENVIRONMENT=n, INFERENCE=0.1) for n in (0.2, 0.2, 0.6)]
    made = facts(*actors, WAIT=0.6, FORWARD=0.4)
    verdict = judge(made)
    notes = " ".join(verdict.notes)
    assert "which wait for it at every rollout" in notes and "Actors already step the environments." in notes
    assert "(60 % waiting for fragments of actors)" in verdict.where
    assert "waiting for fragments" in table.text(made, verdict) and "Sending steps" not in table.text(made, verdict)


def test_start_up_that_fills_the_window_gives_no_verdict():
    made = profile(START_UP=0.999, FORWARD=0.001)
    verdict = judge(Facts(made))
    assert "Start-up took most of the window" in verdict.headline and verdict.remedies == []


def test_a_busy_machine_is_noted():
    made = profile()
    made.training_thread.queued_seconds = 0.4 * made.training_thread.total
    assert "had no core 40 % of the time" in " ".join(judge(Facts(made)).notes)


def test_workers_with_steps_too_short_to_be_sampled_are_counted():
    workers = [worker(1, 0.1), worker(2, 0.0), worker(3, 0.0)]
    workers[1].sites = [site(Role.WAIT, 9.0)]
    workers[1].sites[0].file = "/x/stable_baselines3/common/vec_env/subproc_vec_env.py"
    assert "2 processes step the environments" in judge(facts(*workers, WAIT=0.5, FORWARD=0.5)).where
    assert "Another process steps the environments" in judge(facts(workers[0], WAIT=0.5, FORWARD=0.5)).where
    workers[1].sites[0].file = "/home/me/subproc_vec_env/serve.py"  # a folder called alike
    assert "Another process steps the environments" in judge(facts(*workers, WAIT=0.5, FORWARD=0.5)).where


def test_several_trainers_get_no_figure():
    second = lane(101, Kind.WORKER, "worker 1", FORWARD=0.2, BACKWARD=0.3, WAIT=0.5)
    made = facts(second, FORWARD=0.2, BACKWARD=0.3, WAIT=0.5, counters={"trainers": 2})
    verdict = judge(made)
    assert verdict.headline == "Several processes train, 2 of them."
    assert "main (process 100) 50 % of its time, and it waits 50 %" in verdict.where
    assert "worker 1 (process 101) 50 %" in verdict.where
    assert verdict.remedies == [] and "x" not in verdict.headline.replace("exp", "")


def test_a_window_that_ends_before_training_began_says_so():
    verdict = judge(facts(DATA=0.7, OTHER=0.3, counters={"training_began": 0}))
    assert verdict.headline.startswith("Training had not begun after 60 s") and verdict.remedies == []
    assert "longer --seconds" in verdict.bounds
    only_start_up = judge(facts(START_UP=1.0, counters={"training_began": 0}))
    assert only_start_up.headline.startswith("Training had not begun") and "50.0 s" in only_start_up.where


def test_much_time_of_unknown_role_comes_with_its_lines():
    made = profile(OTHER=0.3, FORWARD=0.7)
    made.training_thread.sites = [site(Role.OTHER, 1.0 + line, f"f{line}()", line) for line in range(7)]
    (note,) = [note for note in judge(Facts(made)).notes if "role is not known" in note]
    assert note.count("train.py:") == 5 and "train.py:6 `f6()` (14 %)" in note


def test_what_others_do_while_the_script_waits_for_them():
    made = facts(lane(101, Kind.WORKER, "worker 1", OTHER=1.0), WAIT=0.8, FORWARD=0.2)
    made.profile.lanes[1].cpu_seconds = 30.0
    assert judge(made).headline.endswith("; worker 1 computes 60 % of the time.")
    made.profile.lanes[1].cpu_seconds = 0.5
    assert judge(made).headline.endswith("and those that were sampled do not work meanwhile.")


def test_the_process_that_starts_the_training_is_no_environment():
    launcher = lane(100, Kind.WORKER, "launcher", IDLE=1.0)
    made = facts(launcher, ENVIRONMENT=0.5, FORWARD=0.5)
    made.profile.training_thread.pid, made.profile.training_thread.parent = 101, 100
    assert made.env_workers == []


@pytest.mark.parametrize(("share", "named"), [(0.4, True), (0.95, False)])
def test_a_thread_that_holds_the_interpreters_lock_is_named(share: float, named: bool) -> None:
    hog = lane(100, Kind.THREAD, "prefetch", turns=1, DATA=1.0)
    made = facts(hog, FORWARD=1.0)
    hog.cpu_seconds = 0.6 * 50.0
    for span in made.profile.training_thread.spans:
        span.on_cpu = share
    held_up.count(made.profile.lanes)
    assert ('The thread "prefetch" computes 60 % of the time' in " ".join(judge(made).notes)) == named


def test_a_script_that_ended_before_its_training_is_not_given_more_time():
    def advice(*how):
        made = profile(START_UP=1.0)
        made.exit = Exit(*how)
        return judge(Facts(made)).bounds

    assert "--python path/to/bin/python" in advice(Ending.EXCEPTION, 1, "ModuleNotFoundError: No module named 'x'")
    assert advice(Ending.EXCEPTION, 1, "ValueError: 3").endswith("yet: correct the exception first.")
    assert advice(Ending.EXIT).endswith("yet: the script ended before it trained.")
    assert advice(Ending.TIME_LIMIT).endswith("yet: use a longer --seconds.")


def test_an_environment_in_a_process_of_its_own_waits_for_a_core():
    verdict = judge(facts(cores=2, counters={"num_envs": 8, "env_rate": 160}))
    why = next(remedy for remedy in verdict.remedies if "processes" in remedy.title).why
    assert "Each environment gets a process of its own, of which 2 run at a time." in why


def test_waiting_for_processes_that_start_up_is_no_training():
    second = lane(101, Kind.WORKER, "worker 1", START_UP=0.9, WAIT=0.1)
    verdict = judge(facts(second, WAIT=1.0, counters={"training_began": 0}))
    assert verdict.headline.startswith("Training had not begun")
    second = lane(101, Kind.WORKER, "worker 1", OTHER=0.9, WAIT=0.1)
    verdict = judge(facts(second, WAIT=1.0, counters={"training_began": 0}))
    assert verdict.headline.startswith("The script waits")


def test_a_process_that_sleeps_steps_no_environments_unless_it_is_waited_for():
    def asleep():
        return lane(101, Kind.WORKER, "worker 1", IDLE=1.0)

    assert "One core steps" in judge(facts(asleep(), ENVIRONMENT=0.9, FORWARD=0.1)).where
    assert "Another process steps" in judge(facts(asleep(), WAIT=0.8, ENVIRONMENT=0.1, FORWARD=0.1)).where
