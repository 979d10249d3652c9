"""Remedies that are proposed, and their order. Their gains follow Amdahl's law."""

from __future__ import annotations

import pytest
from helpers.profiles import SECONDS, facts, lane, profile, site, worker

from headrace.diagnose.profile.profile import Kind, Role
from headrace.diagnose.verdict.profile_facts import Facts
from headrace.diagnose.verdict.remedies import remedies

LEARNING = {"FORWARD": 0.25, "BACKWARD": 0.35, "OPTIMIZER": 0.3}


def titles(found):
    return [remedy.title for remedy in found]


def named(found, words):
    (remedy,) = [remedy for remedy in found if words in remedy.title]
    return remedy


def test_sleeping_is_removed_with_its_line():
    made = profile(ENVIRONMENT=0.2, IDLE=0.5, FORWARD=0.3)
    made.training_thread.sites = [site(Role.IDLE, 25.0, "time.sleep(0.01)")]
    first = remedies(Facts(made))[0]
    assert first.title == "Remove the sleeping"
    assert first.gain == pytest.approx(1 / (0.5 * 0.85))  # the rest is faster without
    assert first.bound >= 1 / (0.5 * 0.75)
    assert "train.py:12" in first.why
    assert first.change.startswith("- time.sleep(0.01)")


@pytest.mark.parametrize(
    ("role", "title"), [("LOGGING", "Log ten"), ("SAVING", "Save ten"), ("EVALUATION", "Evaluate ten")]
)
def test_what_can_be_done_less_often_saves_nine_tenths(role, title):
    first = remedies(facts(**{role: 0.4, "FORWARD": 0.6}))[0]
    assert first.title.startswith(title)
    assert first.gain == pytest.approx(1 / (1 - 0.36))


def test_a_bound_has_the_error_of_sampling_on_the_safe_side_and_timers_have_none():
    made = profile(LOGGING=0.5, FORWARD=0.5)
    assert Facts(made).bound(SECONDS / 2) == pytest.approx(1 / (0.5 - 0.01), rel=1e-3)  # 10,000 samples: 1 point
    made.training_thread.samples = 0
    assert Facts(made).bound(SECONDS / 2) == pytest.approx(2.0)


def test_bounds_allow_for_warmer_caches():
    made = profile(LOGGING=0.5, FORWARD=0.5)
    made.training_thread.samples = 0
    assert remedies(Facts(made))[0].bound == pytest.approx(1 / (0.5 * 0.9))
    assert remedies(Facts(made))[0].gain == pytest.approx(1 / (0.5 + 0.05))


def test_processes_for_slow_environments_include_the_round_trips():
    made = profile(ENVIRONMENT=0.8, FORWARD=0.2, cores=2, counters={"num_envs": 8, "env_rate": 160})
    remedy = named(remedies(Facts(made, round_trip=100e-6)), "2 processes")
    assert remedy.gain == pytest.approx(SECONDS / (0.6 * SECONDS + 8000 * 100e-6))
    assert remedy.bound == pytest.approx(1 / 0.6, rel=0.03)
    assert remedy.gain <= remedy.bound


def test_cheap_environments_do_not():
    made = profile(ENVIRONMENT=0.8, FORWARD=0.2, cores=2, counters={"num_envs": 8, "env_rate": 40000})
    assert not [title for title in titles(remedies(Facts(made, round_trip=100e-6))) if "processes" in title]


def test_without_a_count_of_steps_no_gain_is_predicted():
    remedy = named(remedies(facts(ENVIRONMENT=0.8, FORWARD=0.2, counters={"num_envs": 8})), "4 processes")
    assert remedy.gain is None
    assert "Processes help where" in remedy.why


def test_environments_that_sleep_are_not_limited_by_cores():
    made = profile(ENVIRONMENT=0.8, FORWARD=0.2, cores=2, counters={"num_envs": 8})
    for span in made.training_thread.spans:
        span.on_cpu = 0.1
    assert named(remedies(Facts(made)), "8 processes").bound > 1 / 0.35


def test_a_straggler_is_named_and_its_extra_time_is_the_gain():
    workers = [worker(1, 0.2), worker(2, 0.2), worker(3, 0.6)]
    found = remedies(facts(*workers, WAIT=0.62, FORWARD=0.38))
    assert found[0].title == "Find out why worker 3 is slower"
    assert found[0].gain == pytest.approx(1 / 0.6)


def test_workers_alike_are_no_stragglers():
    workers = [worker(1, 0.5), worker(2, 0.6)]
    assert not [title for title in titles(remedies(facts(*workers, WAIT=0.62, FORWARD=0.38))) if "slower" in title]


def test_processes_that_take_longer_than_their_environments_are_removed():
    workers = [worker(n, 0.05) for n in range(4)]
    first = remedies(facts(*workers, WAIT=0.7, FORWARD=0.3))[0]
    assert first.title == "Step the environments in the script's own process"
    assert first.gain == pytest.approx(1 / (0.3 * 0.85 + 0.5 * 4 * 0.05))


def test_a_small_network_gets_the_fused_optimizer_and_larger_minibatches_and_no_gpu():
    found = remedies(facts(INFERENCE=0.1, **LEARNING, counters={"parameters": 9000, "learning_batch": 64}))
    assert named(found, "fused").gain == pytest.approx(1 / (1 - 0.55 * 0.3))
    assert named(found, "256 instead of 64").gain is None
    assert not [title for title in titles(found) if "GPU" in title]


def test_a_large_network_gets_a_gpu():
    found = remedies(facts(INFERENCE=0.1, **LEARNING, counters={"parameters": 10**7, "learning_batch": 256}))
    gpu = named(found, "Put the network on a GPU")
    assert gpu.bound > 100
    assert gpu.gain is None
    assert not [title for title in titles(found) if "minibatches" in title]


def test_an_idle_gpu_is_not_used():
    counters = {"parameters": 9000, "learning_batch": 64, "cuda": 1}
    found = remedies(facts(ENVIRONMENT=0.3, COPY=0.3, LAUNCH=0.2, FORWARD=0.2, counters=counters, gpu="H200"))
    assert "Train on the CPU" in titles(found)
    assert "Read from the GPU once per update, not once per step" in titles(found)


def test_copies_are_not_blamed_where_there_is_no_gpu():
    assert not [title for title in titles(remedies(facts(COPY=0.3, FORWARD=0.7))) if "GPU once" in title]


def test_a_thread_pool_in_each_worker_is_seen():
    workers = [worker(1, 0.5), worker(2, 0.5)]
    pools = [lane(one.pid, Kind.POOL, "pool", OTHER=0.5) for one in workers for _ in range(3)]
    remedy = named(remedies(facts(*workers, *pools, WAIT=0.6, FORWARD=0.4)), "Give each worker process one thread")
    assert "8 threads in all for 4 cores" in remedy.why


def test_more_threads_than_cores_are_seen():
    pools = [lane(100, Kind.POOL, "pool", OTHER=0.5) for _ in range(7)]
    remedy = named(remedies(facts(*pools, **LEARNING, OTHER=0.1)), "Let torch use one thread")
    assert "8 threads compute on 4 cores" in remedy.why


def test_headrace_is_offered_by_name_where_it_has_the_environment_and_never_to_itself():
    made = profile()
    assert named(remedies(Facts(made)), "Train CartPole-v1 in Headrace").change == "headrace train ppo CartPole-v1"
    made.machine.versions["headrace"] = "0.1.0"
    assert not [title for title in titles(remedies(Facts(made))) if "Headrace" in title]


def test_an_environment_of_ones_own_takes_a_day():
    made = profile()
    for span in made.training_thread.spans:
        span.detail = "MyEnv.step"
    assert named(remedies(Facts(made)), "compiled").effort == "a day"


def test_a_remedy_without_a_prediction_goes_after_every_other():
    pools = [lane(100, Kind.POOL, "pool", OTHER=0.5) for _ in range(7)]
    found = titles(remedies(facts(*pools, EVALUATION=0.2, **LEARNING)))
    assert found.index("Let torch use one thread") > found.index("Evaluate ten times less often")


def test_short_work_after_a_pause_becomes_faster_by_what_waking_up_costs():
    made = profile(IDLE=0.7, FORWARD=0.3)
    made.training_thread.wakes, made.training_thread.cpu_seconds = 4000, 0.3 * SECONDS
    little = named(remedies(Facts(made)), "sleeping")
    assert little.gain == pytest.approx(SECONDS / (15 - 4.4), rel=1e-3)  # 4.4 s of waking up
    made.training_thread.wakes = 10_000
    much = named(remedies(Facts(made)), "sleeping")
    assert little.gain < much.gain == pytest.approx(SECONDS / (15 * (1 - 0.35)), rel=1e-3)
    made.training_thread.wakes = 1_000_000  # pauses too short for caches to become cold
    assert named(remedies(Facts(made)), "sleeping").gain < 0.85 * much.gain


def test_a_busy_machine_loosens_the_bound():
    made = profile(LOGGING=0.5, FORWARD=0.5)
    before = Facts(made).bound(10.0)
    made.training_thread.queued_seconds = 0.2 * SECONDS
    assert Facts(made).bound(10.0) > 1.2 * before


def test_what_is_guessed_or_unknown_widens_the_bounds_of_what_it_may_be():
    def bound(words, **guessed):
        made = profile(SAVING=0.2, DATA=0.3, OTHER=0.1, FORWARD=0.4)
        made.training_thread.samples, made.training_thread.guessed = 0, guessed
        made.training_thread.guessed = {Role[role]: share * SECONDS for role, share in guessed.items()}
        role = Role[words]
        return Facts(made).bound(Facts(made).spent(role), unsure=Facts(made).may_be(role))

    assert bound("SAVING") == pytest.approx(1 / (1 - 0.2 - 0.1))
    assert bound("SAVING", DATA=0.25) == pytest.approx(1 / (1 - 0.2 - 0.1 - 0.25))
    assert bound("DATA", DATA=0.25) == pytest.approx(1 / (1 - 0.3 - 0.1))  # its own are in its share


def test_answers_that_are_waited_for_one_after_another_are_asked_for_at_once():
    made = profile(WAIT=0.8, FORWARD=0.2)
    made.training_thread.waits = {"a socket": 0.7 * SECONDS, "a lock": 0.1 * SECONDS}
    remedy = named(remedies(Facts(made)), "answers at once")
    assert remedy.gain is None and remedy.bound == pytest.approx(1 / (1 - 0.7), rel=0.05)  # a lock gives no answer
    assert not [title for title in titles(remedies(facts(WAIT=0.8, FORWARD=0.2))) if "at once" in title]
    made.lanes.append(lane(201, Kind.WORKER, "worker 1", OTHER=0.6))
    made.lanes[1].cpu_seconds = 0.6 * SECONDS  # the answers are computed meanwhile
    assert not [title for title in titles(remedies(Facts(made))) if "at once" in title]


def test_of_processes_of_unknown_role_the_one_whose_computing_is_waited_for_is_named():
    def found(*computing):
        lanes = [
            lane(200 + number, Kind.WORKER, f"worker {number}", OTHER=0.9) for number, _ in enumerate(computing, 1)
        ]
        made = profile(*lanes, WAIT=0.8, FORWARD=0.2)
        for each, share in zip(lanes, computing, strict=True):
            each.parent, each.cpu_seconds = made.training_thread.pid, share * SECONDS
        return [remedy for remedy in remedies(Facts(made)) if "slower" in remedy.title]

    (remedy,) = found(0.05, 0.05, 0.7)
    assert "worker 3" in remedy.title and remedy.gain is None and remedy.bound == pytest.approx(1 / 0.2, rel=0.05)
    assert not found(0.05, 0.05, 0.2) and not found(0.6, 0.7)


def test_long_steps_gain_less_from_one_process_than_short_ones():
    def gain(wakes):
        busy = worker(1, 0.4)
        busy.wakes, busy.cpu_seconds = wakes, 0.4 * SECONDS
        return named(remedies(Facts(profile(busy, WAIT=0.9, FORWARD=0.1))), "own process").gain

    assert gain(100) < 0.7 * gain(100_000)


def test_one_process_still_steps_sleeps_and_stacks():
    def gain(asleep):
        busy = worker(1, 0.4)
        busy.sites = [site(Role.ENVIRONMENT, asleep * SECONDS)]
        busy.sites[0].call = "sleep"
        made = profile(busy, WAIT=0.7, ENVIRONMENT=0.1, FORWARD=0.2)
        return named(remedies(Facts(made)), "own process").gain

    assert gain(0.0) == pytest.approx(1 / (0.2 * 0.85 + 0.5 * 0.4 + 0.1))
    assert gain(0.3) == pytest.approx(1 / (0.2 * 0.85 + 0.3 + 0.5 * 0.1 + 0.1))


def test_what_the_kernel_knows_has_no_error_of_sampling():
    made = profile(IDLE=0.9, FORWARD=0.1)
    made.training_thread.wakes, made.training_thread.cpu_seconds, made.training_thread.samples = 10_000, 5.0, 400
    found = named(remedies(Facts(made)), "sleeping")
    assert found.gain == pytest.approx(10 / (1 - 0.35)) and found.bound == pytest.approx(10 / (1 - 0.7))


def test_no_gain_exceeds_its_bound_and_the_largest_comes_first():
    workers = [worker(1, 0.05), worker(2, 0.2)]
    found = remedies(facts(*workers, WAIT=0.4, LOGGING=0.15, EVALUATION=0.15, OPTIMIZER=0.1, FORWARD=0.2))
    gains = [remedy.gain for remedy in found if remedy.gain]
    assert len(gains) > 2
    assert gains == sorted(gains, reverse=True)
    assert all(remedy.gain <= remedy.bound for remedy in found if remedy.gain)


def test_nothing_is_offered_where_nothing_can_be_gained():
    made = profile(FORWARD=0.4, BACKWARD=0.52, ENVIRONMENT=0.03, LOGGING=0.01, INFERENCE=0.04)
    made.machine.versions["headrace"] = "0.1.0"
    assert remedies(Facts(made)) == []


def test_an_optimizer_that_is_fused_is_left_alone():
    made = profile(INFERENCE=0.1, **LEARNING)
    for span in made.training_thread.spans:
        if span.role is Role.OPTIMIZER:
            span.detail = "_fused_adam: _fused_adam_"
    made.training_thread.spans[0].role, made.training_thread.spans[0].detail = Role.OPTIMIZER, "Adam.step"
    assert not [title for title in titles(remedies(Facts(made))) if "fused" in title]


def test_the_environment_of_an_evaluation_does_not_hide_those_that_train():
    assert facts(counters={"num_envs": 1, "inference_batch": 8}).num_envs == 8


def test_a_thread_that_waits_for_its_pool_may_be_better_alone():
    pool = lane(100, Kind.POOL, "pool", OTHER=0.5)
    counters = {"parameters": 134_658, "learning_batch": 256}
    assert "Let torch use one thread" not in titles(remedies(facts(pool, **LEARNING, counters=counters)))
    made = profile(pool, **LEARNING, counters=counters)
    for span in made.training_thread.spans:
        span.on_cpu = 0.5
    assert "on a core 50 % of the time" in named(remedies(Facts(made)), "Let torch use one thread").why


def test_sleeping_inside_an_environment_is_removed_too():
    made = profile(ENVIRONMENT=0.6, FORWARD=0.4)
    asleep = site(Role.ENVIRONMENT, 20.0, "time.sleep(0.002)")
    asleep.call = "sleep"
    made.training_thread.sites = [asleep, site(Role.ENVIRONMENT, 10.0, "self.board.move(action)")]
    first = remedies(Facts(made))[0]
    assert first.title == "Remove the sleeping" and "The script sleeps 40 % of the time" in first.why
    assert first.gain == pytest.approx(1 / (0.6 * 0.85))


def of_headrace(detail: str, **shares: float) -> Facts:
    made = profile(counters={"num_envs": 64, "env_rate": 6400.0}, cores=4, **shares)
    made.machine.versions["headrace"] = ""
    for span in made.training_thread.spans:
        span.detail = detail if span.role is Role.ENVIRONMENT else span.detail
    return Facts(made, round_trip=50e-6)


def test_compiled_environments_of_headrace_have_no_remedy():
    made = of_headrace("KernelEnv.step", ENVIRONMENT=0.7, FORWARD=0.3)
    assert made.compiled_env and remedies(made) == []


def test_other_environments_in_headrace_get_workers_or_are_compiled():
    found = remedies(of_headrace("InlineEnv.step", ENVIRONMENT=0.7, FORWARD=0.3))
    assert titles(found) == [
        "Step the environments in 4 processes",
        "Write the environment as a compiled Headrace environment",
    ]
    assert "--workers 4" in found[0].change
    # 400 messages a second for 6,400 steps: 4 workers, each with 16 environments
    assert found[0].gain == pytest.approx(1 / (1 - 0.7 * 0.75 + 400 * 50e-6), rel=0.01)


def test_waiting_for_a_core_is_not_sleeping():
    made = profile(ENVIRONMENT=0.8, FORWARD=0.2, cores=2, counters={"num_envs": 8})
    for span in made.training_thread.spans:
        span.on_cpu = 0.3
    assert "in 8 processes" in titles(remedies(Facts(made)))[0]
    made.training_thread.queued_seconds = 0.6 * SECONDS  # on a busy machine
    assert "in 2 processes" in titles(remedies(Facts(made)))[0]


def test_changes_are_written_for_the_library_that_is_at_work():
    made = profile(INFERENCE=0.1, **LEARNING)
    assert "torch.optim.Adam(" in named(remedies(Facts(made)), "fused").change
    made.machine.versions["stable_baselines3"] = "2.9.2"
    assert "policy_kwargs=" in named(remedies(Facts(made)), "fused").change


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("for k in range(12): v+=float(x)**2*0.01*k", "Compute with whole arrays instead of a loop in Python"),
        ("total += weights[i] * row[i]", "Compute with whole arrays instead of a loop in Python"),
        ("buffer = buffer[-20000:]", "Store the data in preallocated arrays"),
        ("count += 1", "Store the data in preallocated arrays"),
        ("rows[i] += x * y", "Store the data in preallocated arrays"),
        ("def made(rows", "Store the data in preallocated arrays"),
    ],
)
def test_numbers_that_a_loop_adds_up_are_computed_as_arrays(text, title):
    made = profile(DATA=0.6, FORWARD=0.4)
    made.training_thread.sites = [site(Role.DATA, 25.0, text)]
    found = named(remedies(Facts(made)), title)
    assert text in found.change and found.bound == pytest.approx(1 / 0.4, rel=0.05)
