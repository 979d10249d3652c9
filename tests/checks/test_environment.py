"""`headrace check ENV` finds errors of an environment and says where they are and what to do."""

from __future__ import annotations

import json
import math

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple

from headrace.checks.backends import costs, step_seconds
from headrace.checks.environment import check, uneven
from headrace.checks.output import duration
from headrace.checks.random_rollout import StepTimes
from headrace.checks.space_mismatch import mismatch
from headrace.cli.main import main
from headrace.envs import registry
from headrace.envs.builtin.cartpole import CartPole
from headrace.envs.gym.inline import InlineEnv


class Right(gymnasium.Env):
    """Correct: random observations for 20 steps."""

    observation_space, action_space = Box(-100, 100, (2,)), Discrete(2)
    limit = 20

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observation(), {}

    def step(self, action):
        self.steps += 1
        return self.observation(), self.reward(), False, self.steps == self.limit, {}

    def observation(self):
        return self.np_random.normal(size=2).astype(np.float32)

    def reward(self):
        return 1.0


class NaNReward(Right):
    def reward(self):
        return math.nan if self.steps == 7 else 1.0


class ArrayReward(Right):
    def reward(self):
        return np.ones(1)


class Rewards(Right):
    def reward(self):
        return np.ones(2)


class Reuses(Right):
    """Correct, except for one array of all observations."""

    array = np.zeros(2, np.float32)

    def observation(self):
        self.array[:] = super().observation()
        return self.array


class TextReward(Right):
    def reward(self):
        return "1.0"


class NaNObservation(Right):
    def observation(self):
        return np.array([0, np.nan if self.steps == 3 else 0], np.float32)


class TooFar(Right):
    def observation(self):
        return np.array([0, 100.5 if self.steps == 3 else 0], np.float32)


class Doubles(Right):
    def observation(self):
        return self.np_random.normal(size=2)


class WrongShape(Right):
    def observation(self):
        return np.zeros((1, 2) if self.steps == 3 else 2, np.float32)


class NumberFlags(Right):
    def step(self, action):
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, 0, truncated, info


class TextFlags(Right):
    def step(self, action):
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, "False", truncated, info


class Unseeded(Right):
    def observation(self):
        return np.random.normal(size=2).astype(np.float32)


class Remembers(Right):
    """The last episode changes the next."""

    total = 0.0

    def observation(self):
        self.total += 1
        return np.array([self.total % 50, self.np_random.random()], np.float32)


class Endless(Right):
    limit = -1


class Always(Right):
    def observation(self):
        return np.full(2, self.steps, np.float32)


class Coin(Right):
    """+1 or -1 throughout an episode: seeds 0, 1, 2 and 3 draw the same."""

    def reset(self, *, seed=None, options=None):
        gymnasium.Env.reset(self, seed=seed)
        self.steps, self.side = 0, 1 if seed is None or seed % 4 or seed == 0 else -1
        return self.observation(), {}

    def observation(self):
        return np.full(2, self.side, np.float32)


class Broken(Right):
    def step(self, action):
        if self.steps == 4:
            raise ZeroDivisionError("no engine")
        return super().step(action)


class FourOutcomes(Right):
    def step(self, action):
        return super().step(action)[:4]


class Unsupported(Right):
    observation_space = gymnasium.spaces.Text(5)

    def observation(self):
        return "abc"


def found(kind, steps=300):
    """The report of a check, without step times, which depend on the load of the machine."""
    report = check(kind, steps, seconds=60.0, measure=0.0)
    return report._replace(findings=[one for one in report.findings if one.check != "step time"])


def test_a_correct_environment_passes():
    report = found(Right)
    assert {one.check: one.outcome for one in report.findings} == {
        name: "ok"
        for name in (
            *("observation_space", "action_space", "Gymnasium's checker", "observations", "rewards", "endings"),
            *("seeding", "reset", "another seed"),
        )
    }
    assert report.times.steps == 300 and 0 < report.times.median <= report.times.p99 <= report.times.slowest
    assert next(one for one in report.findings if one.check == "endings").found.startswith("0 terminated, 15 truncated")


@pytest.mark.parametrize(
    ("kind", "check", "words"),
    [
        (NaNReward, "rewards", "the reward is nan (step 7, episode 0)"),
        (Rewards, "rewards", "of shape (2,): give one number, such as their weighted sum, in a wrapper"),
        (TextReward, "rewards", "its reward is '1.0', a str: give one number"),
        (NaNObservation, "observations", "the observation of step()[1] is nan (step 3, episode 0)"),
        (TooFar, "observations", "of step()[1] is 100.5, above the bound 100"),
        (Doubles, "observations", "the observation of reset() is an array of float64, the space of float32"),
        (WrongShape, "observations", "has the shape (1, 2), the space (2,)"),
        (TextFlags, "endings", "its terminated is 'False', a str: give one number"),
        (Unseeded, "seeding", "another environment with the same seed differs in its first observation"),
        (Remembers, "reset", "reset with the same seed, differs in its first observation"),
        (
            Broken,
            "exceptions",
            "raised ZeroDivisionError: no engine (after 4 steps, in episode 0 of a random rollout with seed 0)",
        ),
        (FourOutcomes, "exceptions", "it must return (observation, reward, terminated, truncated, info)"),
        (Unsupported, "observation_space", "not supported"),
    ],
)
def test_what_is_wrong_is_found_and_named(kind, check, words):
    wrong = [one for one in found(kind).findings if one.outcome == "wrong" and one.check == check]
    assert len(wrong) == 1 and words in wrong[0].found
    assert wrong[0].advice or check == "observation_space"


@pytest.mark.parametrize(
    ("kind", "check", "words"),
    [
        (Endless, "endings", "no episode ended in 300 steps"),
        (ArrayReward, "rewards", "reward is array([1.]), a ndarray (300 steps, 15 episodes)"),
        (NumberFlags, "endings", "terminated is 0, a int (300 steps, 15 episodes)"),
        (Always, "another seed", "8 other seeds give the same 21 steps: nothing here seems random"),
    ],
)
def test_what_the_user_should_judge_is_a_note(kind, check, words):
    report = found(kind)
    assert [(one.outcome, one.found) for one in report.findings if one.check == check] == [("note", words)]


def test_an_environment_that_draws_one_of_two_numbers_is_random():
    assert [one.outcome for one in found(Coin).findings if one.check == "another seed"] == ["ok"]


def test_an_array_that_is_used_again_is_a_note_since_trainings_copy():
    report = found(Reuses)
    (one,) = [one for one in report.findings if one.check == "Gymnasium's checker"]
    assert one.outcome == "note" and "share an object" in one.found and "trainings here copy" in one.advice
    assert not [one for one in report.findings if one.outcome == "wrong"]


def test_steps_of_very_different_length_are_a_note():
    (note,) = uneven(StepTimes(1e-3, 0.1, 0.2, 100, 0.0))
    assert note.outcome == "note" and note.found == "one step in a hundred takes 100 times the median"
    assert uneven(StepTimes(1e-3, 2e-3, 0.2, 100, 0.0)) == uneven(StepTimes(1e-6, 1e-4, 0.2, 100, 0.0)) == []


def test_a_constructor_that_fails_is_a_finding():
    def failing():
        raise OSError("no such mesh")

    (finding,) = found(failing).findings
    assert finding.outcome == "wrong" and "the constructor raised OSError: no such mesh" in finding.found


def test_a_port_is_compared_with_its_reference():
    report = check(CartPole, 100, seconds=60.0, measure=0.0)
    outcomes = {one.check: one.outcome for one in report.findings}
    assert outcomes["kernel: single steps"] == outcomes["kernel: resets"] == "ok"


def test_backends_that_cannot_run_it_say_why(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    said = {one.backend: one for one in costs(Right, None, 0.0)}
    assert list(said) == ["cpu", "cuda", "torch", "inline", "workers", "vector"]
    assert "KernelEnv" in said["cpu"].note and "vector of environments" in said["vector"].note
    assert said["inline"].note == "not measured"
    assert {one.backend: one.note for one in costs(CartPole, CartPole, 0.0)}["cuda"] == "no CUDA device here"


def test_a_step_is_measured():
    env = InlineEnv(Right, 3, "test")
    assert 0 < step_seconds(env, 0.001) < 60


@pytest.mark.slow
def test_backends_that_fail_say_how():
    said = {one.backend: one for one in costs(Broken, None, 0.001)}
    assert said["inline"].seconds is None and "the engine stalls" in said["inline"].note
    assert "the engine stalls" in said["workers"].note


SPACE = Dict({"place": Box(-1, 1, (2,)), "rest": Tuple((Discrete(3), Box(0, 255, (2, 2), np.uint8)))})
FITS = {"place": np.zeros(2, np.float32), "rest": (np.int64(1), np.zeros((2, 2), np.uint8))}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ""),
        ({"place": np.array([0, 2], np.float32)}, "it['place'][1] is 2, above the bound 1"),
        ({"place": np.array([-3, 2], np.float32)}, "it['place'][0] is -3, below the bound -1"),
        (
            {"place": np.array([0, np.nextafter(np.float32(1), np.float32(2))])},
            "it['place'][1] is 1.0000001192092896, above the bound 1",
        ),
        ({"place": [0.0, 0.0]}, "it['place'] is a list, not an array of float32"),
        ({"rest": (3, FITS["rest"][1])}, "it['rest'][0] is 3, which is not in Discrete(3)"),
        ({"rest": (0.5, FITS["rest"][1])}, "it['rest'][0] is 0.5, a float, not an integer"),
        ({"rest": (1, np.zeros((2, 2), np.int64))}, "it['rest'][1] is an array of int64, the space of uint8"),
        ({"rest": (1,)}, "it['rest'] is (1,), not a tuple of 2"),
        ({"more": 1}, "it has place, rest, more; the space has place, rest"),
    ],
)
def test_mismatches_are_found_with_their_position(change, says):
    assert mismatch(SPACE, FITS | change, "it") == says


def test_the_command_prints_writes_and_gives_its_exit_code(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "import gymnasium, numpy as np\nfrom gymnasium.spaces import Box, Discrete\n"
        "class Mine(gymnasium.Env):\n"
        "    observation_space, action_space = Box(-1, 1, (1,)), Discrete(2)\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        super().reset(seed=seed)\n        return np.zeros(1, np.float32), {}\n"
        "    def step(self, action):\n"
        "        return np.zeros(1, np.float32), float('inf') if self.bad else 0.0, True, False, {}\n"
        "    bad = False\nclass Bad(Mine):\n    bad = True\n"
    )
    flags = ["--steps", "50", "--seconds", "60", "--measure", "0"]
    assert main(["check", f"{tmp_path}/mine.py:Mine", *flags]) == 0
    printed = capsys.readouterr().out
    assert "mine.py:Mine" in printed and "nothing wrong, " in printed and "a step of one environment takes" in printed
    assert main(["check", f"{tmp_path}/mine.py:Bad", *flags, "--output", f"{tmp_path}/out.json"]) == 1
    printed = capsys.readouterr().out
    assert "WRONG" in printed and "the reward is inf" in printed and "-> return a finite number" in printed
    written = json.loads((tmp_path / "out.json").read_text())
    assert not written["passed"] and any(one["outcome"] == "wrong" for one in written["findings"])
    assert main(["check", f"{tmp_path}/mine.py:Bad", *flags, "--json"]) == 1
    assert _timeless(json.loads(capsys.readouterr().out)["findings"]) == _timeless(written["findings"])


def _timeless(findings):
    """Findings without the note on step times, which depend on the load of the machine."""
    return [one for one in findings if one["check"] != "step time"]


def test_the_command_compares_a_kernel_with_its_reference(capsys):
    words = ["check", "CartPole-v1", "--against", "CartPole-v1", "--steps", "200"]
    assert main(words) == 0
    assert "200 steps of " in capsys.readouterr().out
    assert main(["check", "LunarLander-v3", "--against", "CartPole-v1"]) == 2
    assert "LunarLander-v3 is no KernelEnv" in capsys.readouterr().err
    assert main(["check", "--against", "CartPole-v1"]) == 2
    assert main(["check", "NoSuchThing-v9"]) == 2


@pytest.mark.parametrize(
    ("seconds", "says"), [(2.5, "2.5 s"), (0.0123, "12.3 ms"), (4.56e-5, "45.6 us"), (7.89e-9, "7.89 ns")]
)
def test_durations(seconds, says):
    assert duration(seconds) == says


class WithText(Right):
    """Environment with a member that policies cannot read."""

    observation_space = Dict(body=Box(-100, 100, (2,)), mission=Text(9))

    def observation(self):
        return {"body": super().observation(), "mission": "go"}


def test_the_check_looks_at_what_a_training_makes(monkeypatch):
    wrong = [finding for finding in check(WithText, 20, measure=0).findings if finding.outcome == "wrong"]
    assert any("text has no numbers" in finding.found for finding in wrong)
    registry.register("WithText-v0", WithText, {"a2c": {"num_envs": 2}, "ppo": {"ignore": ("mission",)}})
    report = check("WithText-v0", 20, measure=0.01)
    assert "wrong" not in [finding.outcome for finding in report.findings if "checker" not in finding.check]
    assert {cost.backend for cost in report.costs if cost.seconds} == {"inline", "workers"}


class Told(gymnasium.Env):
    """Text beside numbers, which check names; what is left out of it, and how long its episodes are, a user says."""

    action_space = Discrete(2)
    observation_space = Dict(x=Box(-1, 1, (2,), np.float32), mission=Text(9))

    def __init__(self, size=1):
        self.size = size

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"x": self.np_random.random(2, np.float32) / self.size, "mission": "go"}, {}

    def step(self, action):
        return (
            {"x": self.np_random.random(2, np.float32) / self.size, "mission": "go"},
            float(self.size),
            False,
            False,
            {},
        )


def test_an_environment_is_checked_as_a_training_would_make_it(capsys):
    command = ["check", f"{__file__}:Told", "--steps", "60", "--measure", "0"]
    assert main(command) == 1 and "--ignore mission" in capsys.readouterr().out
    assert main([*command, "--ignore", "mission", "--time-limit", "7", "--frame-stack", "3"]) == 0
    said = capsys.readouterr().out
    assert "truncated (60 steps, 8 episodes)" in said and "(3, 2)" in said
    assert main([*command, "--ignore", "mission", "--env-kwargs", "size=0"]) == 1  # it divides by that
