"""The gradient step compiled from CrossQ's losses equals the plain one, which autograd differentiates."""

from __future__ import annotations

import pytest
import torch
from helpers.off_policy_oracle import ACTIONS, OBSERVATIONS, made_up

from headrace.algorithms.crossq import CrossQ, CrossQConfig
from headrace.bindings.compiled import loss_program
from headrace.core import fused
from headrace.kernels.runtime.thread_pool import WorkQueue
from headrace.policies.normalization import BatchRenorm

ONE_LAYER = {"hidden": (13,), "critic_hidden": (13,)}  # of what has nothing to do with their number: half to compile
CASES = {
    "two layers": {},
    "other sizes": {"hidden": (9,), "critic_hidden": (20, 13, 50)},
    "no hidden layers": {"hidden": (), "critic_hidden": ()},
    "tanh": ONE_LAYER | {"activation": "tanh"},
    "gelu": ONE_LAYER | {"activation": "gelu"},
    "batch normalisation": ONE_LAYER | {"renorm_warm_up": 100},
    "corrected after three batches": ONE_LAYER | {"renorm_warm_up": 3},
    "an actor step each": {"policy_delay": 1},
    "a fixed temperature": ONE_LAYER | {"learn_temperature": False, "target_entropy": -1.0},
    "normalised": {"normalize_observation": True},
}
STEPS, ROWS = 5, 24


pytestmark = pytest.mark.usefixtures("one_thread")


def norms_of(algorithm):
    return [module for module in algorithm.policy.modules() if isinstance(module, BatchRenorm)]


def build(**options):
    settings = {"hidden": (20, 13), "critic_hidden": (20, 13), "learning_starts": 0, "renorm_warm_up": 0, **options}
    algorithm = CrossQ.build(CrossQConfig(**settings), OBSERVATIONS, ACTIONS, 0, "cpu")
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():  # outputs that vary, and norms that are all different
        algorithm.policy.actor_out.weight.mul_(50)
        for norm in norms_of(algorithm):
            for part in (norm.weight, norm.bias, norm.mean, norm.std):
                part += 0.3 * torch.rand(part.shape, generator=draw)
    for optimizer in algorithm.optimizers.values():  # where a norm takes away what a bias adds, its gradient is noise
        optimizer.eps = 1e-3
    algorithm.rows_per_iteration = STEPS
    algorithm.policy.encoder.update_statistics(torch.linspace(-1, 2, 150).view(50, 3), torch.ones(50, dtype=torch.bool))
    return algorithm


def numbers(algorithm):
    """All that learning moves."""
    optimizers = algorithm.optimizers.items()
    found = {name: optimizer.flat for name, optimizer in optimizers}
    found |= {f"{name}.mean": optimizer.mean for name, optimizer in optimizers}
    found |= {f"{name}.square": optimizer.square for name, optimizer in optimizers}
    found |= {f"{name}.steps": torch.as_tensor(float(optimizer.steps)) for name, optimizer in optimizers}
    for k, norm in enumerate(norms_of(algorithm)):
        found |= {f"norm {k}.{name}": buffer for name, buffer in norm.named_buffers()}
    return found


def learned(algorithm, calls=2, rows=ROWS):
    random = torch.rand(STEPS, rows, algorithm.num_draws(), generator=torch.Generator().manual_seed(5))
    for call in range(calls):
        metrics = algorithm.learn(made_up(STEPS, rows, seed=call), random)
        algorithm.iteration += 1
    return metrics


@pytest.mark.parametrize(("case", "rows"), [*((case, ROWS) for case in CASES), ("two layers", 65), ("two layers", 150)])
def test_compiled_equals_the_plain_call(case, rows):
    plain, compiled = build(**CASES[case]), build(**CASES[case])
    with fused.plain_only():
        wanted = learned(plain, rows=rows)
    got = learned(compiled, rows=rows)
    for key, value in numbers(plain).items():
        torch.testing.assert_close(
            numbers(compiled)[key], value, rtol=5e-4, atol=5e-6, msg=lambda text, key=key: f"{key}: {text}"
        )
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("hidden", [(20, 13), (48, 70)])
def test_the_number_of_threads_changes_no_bit(hidden, monkeypatch):
    monkeypatch.setattr(loss_program, "WORTH_HELP", 0)
    asked, ends, run = [], [], WorkQueue.run
    monkeypatch.setattr(WorkQueue, "run", lambda team, call, threads: (asked.append(threads), run(team, call, threads)))
    for threads in ("1", "3"):
        monkeypatch.setenv("HEADRACE_THREADS", threads)
        algorithm = build(hidden=hidden, critic_hidden=hidden)
        learned(algorithm, rows=150)
        ends.append(numbers(algorithm))
    assert set(asked) == {1, 3}
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])


def test_settings_of_norms_that_are_edited_take_effect():
    ends = []
    for plain in (True, False):
        algorithm = build()
        learned(algorithm, 1)
        for norm in norms_of(algorithm):
            norm.keep, norm.r_max, norm.d_max, norm.eps = 0.5, 1.1, 0.1, 0.1
            norm.mean += 0.2
        if plain:
            with fused.plain_only():
                learned(algorithm, 1)
        else:
            learned(algorithm, 1)
        ends.append(numbers(algorithm))
    torch.testing.assert_close(ends[1], ends[0], rtol=5e-4, atol=5e-6)


def test_settings_of_its_optimizers_take_effect(capsys):
    found = []
    for plain in (False, True):
        edited = build()
        edited.optimizers["critics"].beta2 = 0.99
        with fused.plain_only(plain):
            learned(edited, 1)
        found.append(numbers(edited))
    torch.testing.assert_close(found[0], found[1], rtol=5e-4, atol=5e-6)
    assert "runs in plain PyTorch" not in capsys.readouterr().err
