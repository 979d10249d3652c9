"""Every function and constant that a plain function reaches counts: edited, the kernel steps back and says so."""

import os
import pydoc
import re
import sys
from enum import Enum
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # where this is run as a program
from helpers.fused_calls import call

import headrace
from headrace.bindings import actor_critic_cuda, digests
from headrace.core import closure, fused
from headrace.core.source_text import tree_text
from headrace.core.value_text import describe

PACKAGE = os.path.join(os.path.dirname(headrace.__file__), "")  # of any name: a checkout's parents may be called alike
APART = tuple(PACKAGE + name for name in ("core/fused.py", "core/closure.py", "core/timer.py", "kernels/"))
NAMES = tuple(digests.DIGESTS)


def reached(name):
    function, arguments = call(name)
    with torch.no_grad():
        fused.kernel_of(function, *arguments)  # imports the binding
    kernels = with_digest(name) or of_a_gpu(name)
    return function.plain, kernels, fused.reached(function.plain, kernels[0].classes)


def with_digest(name):
    """The kernels of this name that were written after a source; programs are made of it."""
    return [kernel for kernel in fused._kernels[name] if kernel.digest]


def of_a_gpu(name):
    """The kernels of this name that are offered where there is a GPU; others find what was registered before."""
    before = {each: [*kernels] for each, kernels in fused._kernels.items()}
    actor_critic_cuda.offer.__wrapped__(bool)
    found = with_digest(name)
    for each, kernels in before.items():
        fused._kernels[each][:] = kernels
    return found


@pytest.mark.parametrize("name", NAMES)
def test_kernels_know_the_source_that_they_were_written_after(name):
    _, kernels, found = reached(name)
    assert {kernel.digest for kernel in kernels} == {found.digest}, digests.__doc__


@pytest.mark.parametrize("name", NAMES)
def test_digests_are_the_same_in_every_version_of_python(name):
    plain, kernels, found = reached(name)
    lines = {label for label, _ in closure._Walk(plain, kernels[0].classes).lines}
    assert not [line for line in lines if re.search(r"(?<![\w.])_[a-z]\w*\.[a-zA-Z]", line)], "a private module"
    for function in found.functions:
        if function.__globals__["__name__"].startswith("headrace."):
            tree_text(function)  # which raises where only bytecode is there


def executed(name, plain, noted=True):
    """Code of the package that a call runs, without what belongs to no plain function (APART)."""
    function, arguments = call(name)
    with torch.set_grad_enabled(name.endswith(("learn", "learn_from_replay"))):
        return run(lambda: (function.plain if plain else function)(*arguments), noted)


def run(function, noted=True):
    """Code of the package that a function runs, without what belongs to no plain function."""
    codes = set()

    def note(frame, event, _):
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(PACKAGE) and not file.startswith(APART):
            codes.add(frame.f_code)

    sys.setprofile(note if noted else None)
    try:
        function()
    finally:
        sys.setprofile(None)
    return codes


def of_losses(name):
    """Code that the losses of an off-policy algorithm run: where it changes, their programs are made again. And which
    parameters are learned: a collector asks that before each rollout."""
    _, (first, *_) = call(name)
    algorithm = getattr(first, "algorithm", first)
    objectives, networks = algorithm.objectives()
    rows = {part: torch.rand(8, 3) for part in ("observation", "next_observation")} | {"action": torch.rand(8, 1)}
    rows |= {part: torch.rand(8) for part in ("reward", "discount", "weight")}
    rows["random"] = torch.rand(8, algorithm.num_draws())
    with fused.plain_only():
        run_by_losses = run(lambda: [each.loss(networks, dict(rows), algorithm.config) for each in objectives])
    return run_by_losses | {type(algorithm).learned.__code__}


def codes_of(function):
    found = [function.__code__]
    for code in found:
        found += [constant for constant in code.co_consts if hasattr(constant, "co_code")]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_all_that_the_plain_function_runs_and_the_kernel_does_not_is_reached(name):
    known = set()
    for part in (name, *(("actor_critic.act", "actor_critic.value") if name == "collector.steps" else ())):
        known.update(code for function in reached(part)[2].functions for code in codes_of(function))
    if name.startswith("off_policy."):
        known |= of_losses(name)
    executed(name, plain=False, noted=False)  # what is compiled at first: noting the compiler's calls doubles its time
    executed(name, plain=False)  # what is imported at first
    with fused.plain_only():
        of_plain = executed(name, plain=True)
    missing = of_plain - executed(name, plain=False) - known
    assert not sorted(f"{Path(code.co_filename).name}: {code.co_qualname}" for code in missing)


def other(value):
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, tuple) and type(value) is tuple:
        return (*value, "more")
    return (lambda *_: None) if describe(value).functions else type("Other", (), {})


_edited = set()  # by tests before: what several kernels depend on is edited for one of them


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_steps_back_for_each_edit_and_says_so(name, monkeypatch, capsys):
    plain, (kernel, *_), found = reached(name)
    for owner, space, key, value in zip(found.owners, found.spaces, found.names, found.values, strict=True):
        if isinstance(value, Enum) or (owner, key) in _edited:
            continue  # Python does not let anybody replace a member of an Enum
        _edited.add((owner, key))
        with monkeypatch.context() as patch:
            patch.setattr(fused, "_said", set())
            if isinstance(space, dict):
                patch.setitem(space, key, other(value))
            else:
                patch.setattr(pydoc.locate(owner), key, other(value))
            assert not fused._serves(name, plain, kernel, True), key
            assert f"{name} runs in plain PyTorch: the plain function is not the one" in capsys.readouterr().err, key
    assert fused._serves(name, plain, kernel, True)


if __name__ == "__main__":
    path = Path(digests.__file__)
    text = path.read_text()
    for name in NAMES:
        new = reached(name)[2].digest
        text = re.sub(rf'("{name}"): Digest\(.*\)', rf'\1: Digest("{new}", "{new.text}")', text)
    path.write_text(text)
