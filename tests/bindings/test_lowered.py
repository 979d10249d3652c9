"""Row programs that are data of the package: equal to fresh traces, and found for what they were traced of alone."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headrace.algorithms import ppo
from headrace.algorithms.base import ALGORITHMS
from headrace.bindings.compiled import compiled_learning, lowered
from headrace.bindings.compiled.compiled_acting import CompiledOutputs
from headrace.bindings.compiled.compiled_losses import CompiledLoss
from headrace.bindings.compiled.loss_tries import Tries
from headrace.kernels.rows.targets import records
from headrace.kernels.rows.tracing import trace_loss
from headrace.policies.networks import MLP
from tests.bindings.kept_losses import Disk
from tests.bindings.lowered_programs import (
    Asked,
    Request,
    asked,
    by_programs,
    entry_for,
    learned,
    requests,
    small,
    varied,
)

ROOT = Path(__file__).parents[2]
SEED = 98  # of sizes at which nothing was traced for the file
ENOUGH = 6
TRACER = ("trace_loss", "graph_recorder", "decompositions")


def requests_of(name: str) -> list[Request]:
    return [request for request in requests() if request.name == name]


def differing(request: Request, counts: Counter[str]) -> list[str]:
    """The losses for which the file has another program than a fresh trace, or none at the sizes of the request; at
    others there may be none. counts: comparisons by key, ENOUGH of each."""
    entries, found = lowered._entries(), list[str]()
    compared = {key: entries[key] for key, count in counts.items() if count >= ENOUGH and key in entries}
    for own, one in [(wanted, one) for wanted in (request, varied(request, SEED)) for one in asked(wanted, compared)]:
        counts[one.key] += 1
        program = entry_for(entries.get(one.key, ()), one.settings, one.numbers)
        if program != one.tree and (own is request or program is not None):
            found.append(f"{one.loss.name} {request}")
    return found


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_programs_in_the_file_are_those_of_fresh_traces(name: str) -> None:
    assert not differing(small(name), Counter()), lowered.__doc__


@pytest.mark.parametrize("name", ALGORITHMS)
def test_all_programs_in_the_file_are_those_of_fresh_traces(name: str) -> None:
    found, counts = list[str](), Counter[str]()
    for request in requests_of(name):
        with suppress(TypeError, ValueError):  # of spaces that are not this algorithm's
            found += differing(request, counts)
    assert not found, lowered.__doc__


def served(one: Asked, arguments: Any = None) -> bool:
    """Tell whether the file has a program for a loss as it is now."""
    arguments = one.arguments if arguments is None else arguments
    seen = one.loss._conditions(arguments, Tries())
    while isinstance(found := lowered.find(seen.given, seen.reach, seen.gradients), list):
        seen = seen.fixing(arguments, frozenset(found))
    return found is not None


def last_loss(name: str) -> Asked:
    """The last program that is a loss's, rather than what a policy acts by."""
    return [one for one in asked(small(name)) if not isinstance(one.loss, CompiledOutputs)][-1]


@pytest.fixture(scope="module")
def of_ppo() -> Asked:
    return last_loss("ppo")


@pytest.fixture(scope="module")
def of_sac() -> Asked:
    return last_loss("sac")


def edited_code(path: Path, new: str) -> Any:
    """The code of ppo_loss in a copy of its file in which a line is another."""
    old, text = "    loss = ", Path(ppo.__file__).read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    del sys.modules[path.stem]
    return module.ppo_loss.__code__


@pytest.mark.parametrize(("new", "same"), [("    loss = 2 * ", False), ("    # a comment\n    loss = ", True)])
def test_an_edited_loss_is_not_served(
    new: str, same: bool, of_ppo: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert served(of_ppo)
    monkeypatch.setattr(ppo.ppo_loss, "__code__", edited_code(tmp_path / f"edited_{same}.py", new))
    assert served(of_ppo) is same


def other_kl(log_ratio: Tensor) -> Tensor:
    return log_ratio.exp() - 1 - 2 * log_ratio


PATCHES: dict[str, tuple[Any, str, Any]] = {
    "a function that it calls": (ppo, "_kl", other_kl),
    "a constant": (ppo, "LARGEST", 40.0),
    "a network's method": (MLP, "forward", lambda self, x: x),
}


@pytest.mark.parametrize("what", PATCHES)
def test_what_is_patched_is_not_served(what: str, of_ppo: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    assert served(of_ppo)
    monkeypatch.setattr(*PATCHES[what])
    assert not served(of_ppo)


def test_other_settings_that_the_trace_reads_are_not_served(of_ppo: Asked, of_sac: Asked) -> None:
    networks, rows, config = of_sac.arguments
    assert served(of_sac)
    assert served(of_sac, (networks, rows, replace(config, learning_starts=77, gamma=0.5)))
    assert not served(of_sac, (networks, rows, replace(config, learn_temperature=False)))
    policy, batch, config, share = of_ppo.arguments
    assert served(of_ppo)
    assert not served(of_ppo, (policy, {**batch, "action": batch["action"].long()}, config, share))
    with torch.no_grad():
        policy.critic_out.weight.requires_grad_(False)
    assert not served(of_ppo)
    policy.critic_out.weight.requires_grad_(True)
    policy.encoder.skipped += 1  # an attribute that the code names
    assert not served(of_ppo)
    policy.encoder.skipped -= 1
    policy.distribution_name = "another"  # one that it does not name
    assert served(of_ppo)


def broken(*_: Any) -> None:
    """Raise what a PyTorch raises that cannot be traced."""
    raise AttributeError("module 'torch._ops' has no attribute 'HigherOrderOperator'")


def test_a_hook_is_not_served(of_ppo: Asked, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_loss, "record", broken)
    loss, (policy, *_) = CompiledLoss(of_ppo.loss.plain, True), of_ppo.arguments
    assert loss.why_not(*of_ppo.arguments) is None
    assert not disk.traces
    for register in (policy.actor.register_forward_hook, policy.actor_out.weight.register_hook):
        handle = register(lambda *_: None)
        assert "hook" in str(loss.why_not(*of_ppo.arguments))
        handle.remove()


def own_loss(policy: Any, batch: Any, config: Any) -> Tensor:
    """PPO's, and a term."""
    return ppo.ppo_loss(policy, batch, config)[0] + 0.01 * policy(batch["inputs"])[1].square() @ batch["weight"]


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_built_in_losses_learn_the_same_bits_where_nothing_can_be_traced(
    name: str, disk: Disk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with by_programs(), monkeypatch.context() as patch:
        patch.setattr(lowered, "find", lambda *_: None)
        compiled_learning._compiled.cache_clear()
        traced = learned(small(name))
        assert disk.traces
        patch.undo()
        patch.setattr(trace_loss, "trace", broken)
        for path in disk.records():
            path.unlink()
        records._known.clear()
        compiled_learning._compiled.cache_clear()
        assert torch.equal(learned(small(name)), traced)
        assert "plain PyTorch" not in capsys.readouterr().err
        assert len(disk.records()) >= 2
        if name == "ppo":
            assert not torch.equal(learned(small(name), own_loss), traced)
            assert "learning runs in plain PyTorch: " in capsys.readouterr().err


IN_A_PROCESS = """
import sys
from tests.bindings.lowered_programs import by_programs, learned, small
with by_programs():
    learned(small("ppo"))
print([name for name in sys.modules if name.startswith("headrace.") and name.endswith(tuple(sys.argv[1:]))])
"""


def test_the_tracer_is_not_imported(tmp_path: Path) -> None:
    command = [sys.executable, "-c", IN_A_PROCESS, *TRACER]
    own = os.environ | {"HEADRACE_CACHE": str(tmp_path)}
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], env=own, stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
