"""SAC, TQC, TD3 and DDPG learn by programs of their losses what plain PyTorch learns."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from helpers.off_policy_oracle import ACTIONS, OBSERVATIONS, made_up

from headrace.algorithms.ddpg import DDPG, DDPGConfig
from headrace.algorithms.sac import SAC, SACConfig
from headrace.algorithms.td3 import TD3, TD3Config
from headrace.algorithms.tqc import TQC, TQCConfig
from headrace.bindings.compiled import loss_program
from headrace.core import fused
from headrace.kernels.runtime.thread_pool import WorkQueue

CASES = {
    "two layers": {},
    "tanh": {"activation": "tanh"},
    "three layers": {"hidden": (20, 13, 7)},
    "no hidden layers": {"hidden": ()},
    "normalised": {"normalize_observation": True},
}
ALGORITHMS = {"sac": (SAC, SACConfig), "tqc": (TQC, TQCConfig), "td3": (TD3, TD3Config), "ddpg": (DDPG, DDPGConfig)}
STEPS, ROWS = 5, 24


pytestmark = pytest.mark.usefixtures("one_thread")


def build(name, **options):
    """An algorithm whose actor, critics and targets differ, with statistics of what was seen."""
    kind, config = ALGORITHMS[name]
    settings = {"hidden": (20, 13), "learning_starts": 0, **options}
    if name == "tqc":
        settings = {"critics": 3, "quantiles": 7, "critic_hidden": settings["hidden"], **settings}
    algorithm = kind.build(config(**settings), OBSERVATIONS, ACTIONS, 0, "cpu")
    with torch.no_grad():
        algorithm.policy.actor_out.weight.mul_(50)
        for buffer in algorithm.buffers.values():
            buffer += 0.02
    algorithm.rows_per_iteration = STEPS  # as prepare() finds out: an iteration of so many rows, and gradient steps
    algorithm.policy.encoder.update_statistics(torch.linspace(-1, 2, 150).view(50, 3), torch.ones(50, dtype=torch.bool))
    return algorithm


def numbers(algorithm):
    """All that learning moves."""
    flats = {name: optimizer.flat for name, optimizer in algorithm.optimizers.items()}
    moments = {f"{name}.square": optimizer.square for name, optimizer in algorithm.optimizers.items()}
    return flats | moments | algorithm.buffers


def learned(algorithm, calls=2, rows=ROWS):
    random = torch.rand(STEPS, rows, max(algorithm.num_draws(), 1), generator=torch.Generator().manual_seed(5))
    for call in range(calls):
        metrics = algorithm.learn(made_up(STEPS, rows, seed=call), random)
        algorithm.iteration += 1
    return metrics


@pytest.mark.parametrize("name", ["sac", "tqc", "td3"])
def test_a_target_critic_of_nan_shows(name):
    """Whichever it is: the lower of a number and NaN is NaN."""
    for critic in (0, 1):
        algorithm = build(name)
        algorithm.networks.target.critics.biases[-1].data[critic] = float("nan")
        assert learned(algorithm)["critic_loss"].isnan()


@pytest.mark.parametrize("name", ["td3", "ddpg"])
def test_gradients_of_saturated_actions_may_be_inverted(name):
    """A saturated actor moves with inverted gradients, and stays without them."""
    ends = []
    for invert, plain in ((True, True), (True, False), (False, False)):
        algorithm = build(name, invert_gradients=invert)
        with torch.no_grad():
            algorithm.policy.actor_out.bias += torch.tensor([20.0, -20.0, 0.0])
        before = algorithm.policy.actor_out.bias[:2].clone()
        with fused.plain_only() if plain else nullcontext():
            learned(algorithm)
        ends.append((numbers(algorithm), (algorithm.policy.actor_out.bias[:2] - before).abs().max()))
    torch.testing.assert_close(ends[1][0], ends[0][0], rtol=2e-4, atol=2e-6)
    assert ends[1][1] > 1e-3 and ends[2][1] == 0


@pytest.mark.parametrize("name", ["td3", "ddpg", "sac", "tqc"])
def test_actors_near_their_bounds_learn_by_the_slope_of_the_input(name):
    """Actions round to a bound, where the slope of float32 outputs is 0 or twice the truth; Adam makes steps of it."""
    ends = []
    for plain in (True, False):
        algorithm = build(name)
        with torch.no_grad():
            algorithm.policy.actor_out.bias[:3] += torch.tensor([8.7, -9.1, 9.6])
        before = algorithm.policy.actor_out.bias[:3].clone()
        with fused.plain_only(plain):
            learned(algorithm)
        ends.append((numbers(algorithm), (algorithm.policy.actor_out.bias[:3] - before).abs()))
    torch.testing.assert_close(ends[1][0], ends[0][0], rtol=2e-4, atol=2e-6)
    assert (ends[1][1] > 0).all()


@pytest.mark.parametrize("case", [*CASES, "one row more than a block", "whole vectors", "wide", "elu", "gelu"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_programs_learn_what_plain_pytorch_learns(name, case):
    special = {"one row more than a block": ({}, 65), "whole vectors": ({"hidden": (32, 48)}, ROWS)}
    special |= {activation: ({"activation": activation}, ROWS) for activation in ("elu", "gelu")}
    # tanh has no kink that another rounding may fall on the other side of; Adam's first steps are a slope's sign
    special["wide"] = ({"hidden": (128, 160, 128), "activation": "tanh"}, 65, 2e-5)
    compare(name, *special.get(case, (CASES.get(case), ROWS)))


def compare(name, options, rows=ROWS, atol=2e-6):
    plain = build(name, **options)
    compiled = build(name, **options)
    with fused.plain_only():
        wanted = learned(plain, rows=rows)
    got = learned(compiled, rows=rows)
    for key, value in numbers(plain).items():
        torch.testing.assert_close(numbers(compiled)[key], value, rtol=2e-4, atol=atol, msg=key)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options", [{"dropped_quantiles": 0}, {"critics": 1}, {"quantiles": 40}, {"critic_hidden": (9,)}]
)
def test_truncated_critics_of_all_sizes(options):
    compare("tqc", options)


@pytest.mark.parametrize("sizes", [(9,), (24, 17, 30)])
@pytest.mark.parametrize("name", ["sac", "td3", "ddpg"])
def test_critics_have_sizes_of_their_own(name, sizes):
    algorithm = build(name, critic_hidden=sizes)
    assert [weight.shape[2] for weight in algorithm.policy.critics.weights] == [*sizes, 1]
    compare(name, {"critic_hidden": sizes})


def test_targets_are_truncated():
    """One target critic is far above the others, so the largest quantiles are its own."""
    ends = []
    for dropped, plain in ((3, True), (3, False), (0, False)):
        algorithm = build("tqc", dropped_quantiles=dropped)
        with torch.no_grad():
            algorithm.networks.target.critics.biases[-1][0] += torch.arange(7) * 100.0
        with fused.plain_only() if plain else nullcontext():
            ends.append(float(learned(algorithm, 1)["critic_loss"]))
    assert ends[1] == pytest.approx(ends[0], rel=1e-4) and ends[2] > 1.5 * ends[1]


def test_a_clipped_deviation_and_a_fixed_temperature():
    """Outside its bounds log_std has no slope."""
    ends = []
    for plain in (True, False):
        algorithm = build("sac", learn_temperature=False, target_entropy=-1.0)
        with torch.no_grad():
            algorithm.policy.actor_out.bias[3:] = torch.tensor([2.5, -21.0, 0.0])
        if plain:
            with fused.plain_only():
                learned(algorithm)
        else:
            learned(algorithm)
        ends.append(numbers(algorithm))
    torch.testing.assert_close(ends[1], ends[0], rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_wide_layers_and_other_betas_are_learned_by_programs(name, monkeypatch, capsys):
    monkeypatch.setattr(fused, "_said", set())
    learned(build(name, hidden=(1025,)), 1)
    found = []
    for plain in (False, True):
        edited = build(name)
        edited.optimizers["critics"].beta2 = 0.99
        with fused.plain_only(plain):
            learned(edited)
        found.append(numbers(edited))
    torch.testing.assert_close(found[0], found[1], rtol=2e-4, atol=2e-6)
    assert "runs in plain PyTorch" not in capsys.readouterr().err


@pytest.mark.parametrize("hidden", [(48, 32), (128, 160)])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_number_of_threads_changes_no_bit(name, hidden, monkeypatch):
    monkeypatch.setattr(loss_program, "WORTH_HELP", 0)
    asked, ends, run = [], [], WorkQueue.run
    monkeypatch.setattr(WorkQueue, "run", lambda team, call, threads: (asked.append(threads), run(team, call, threads)))
    for threads in ("1", "3"):
        monkeypatch.setenv("HEADRACE_THREADS", threads)
        algorithm = build(name, hidden=hidden)
        learned(algorithm, rows=200)  # three blocks at least, also on tiles
        ends.append(numbers(algorithm))
    assert set(asked) == {1, 3}
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])


def test_a_policy_whose_parameters_moved_is_learned_anew():
    """Another optimizer makes another buffer: learning with views of the old one would have no effect."""
    first = build("sac")
    learned(first, 1)
    second = SAC(first.policy, replace(first.config), 0)
    before = second.networks.critic_optimizer.flat.clone()
    learned(second, 1)
    assert not torch.equal(second.networks.critic_optimizer.flat, before)
