"""hr.compile(): what tracing made is kept on disk under a key that covers what the trace read; so are refusals."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import linecache
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.bindings.kept_losses import Disk, net_and_rows
from tests.bindings.losses import mlp
from tests.bindings.test_compiled_losses_kept import agrees

ROOT = Path(__file__).parents[2]


def test_a_loss_is_traced_once_for_all_processes(disk: Disk) -> None:
    def loss(net: nn.Module, x: Tensor, coef: float) -> Tensor:
        return coef * net(x).square().mean()

    assert disk.traced(loss, *net_and_rows(), 0.5)
    assert not disk.traced(loss, *net_and_rows(), 0.7)  # other weights, another number
    assert not disk.traced(loss, mlp(3, 8, 1), torch.randn(33, 3), 0.7)
    assert disk.traced(loss, mlp(3, 9, 1), torch.randn(20, 3), 0.7)


def with_coef(coef: Any) -> Callable[..., Any]:
    return lambda net, x: coef * net(x).square().mean()


def with_list(coef: Any) -> Callable[..., Any]:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.scales = mlp(3, 8, 1), [1.0, coef]

    return lambda net, x: net.scales[1] * net.inner(x).square().mean(), Holder()  # type: ignore[return-value]


def with_default(coef: Any) -> Callable[..., Any]:
    def loss(net: nn.Module, x: Tensor, scale: Any = coef) -> Tensor:
        return scale * net(x).square().mean()

    return loss


def with_object(coef: Any) -> Callable[..., Any]:
    settings = SimpleNamespace(coef=coef)
    return lambda net, x: settings.coef * net(x).square().mean()


def with_attribute(coef: Any) -> Callable[..., Any]:
    def loss(net: nn.Module, x: Tensor) -> Tensor:
        return inner.coef * net(x).square().mean()  # type: ignore[attr-defined]

    def inner() -> None: ...

    inner.coef = coef  # type: ignore[attr-defined]
    return loss


@pytest.mark.parametrize("make", [with_coef, with_list, with_default, with_object, with_attribute])
def test_another_number_is_another_key(disk: Disk, make: Callable[[Any], Any]) -> None:
    def traced(coef: float) -> bool:
        made, (net, x) = make(coef), net_and_rows()
        loss, net = made if isinstance(made, tuple) else (made, net)
        return disk.traced(loss, net, x)

    assert [traced(coef) for coef in (2.0, 2.0, 3.0, 2.0)] == [True, False, True, False]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], ModuleType]:
    """Write a module of the user's, and import it as a new process does."""

    def write(name: str, text: str) -> ModuleType:
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(text))
        linecache.checkcache()
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, made)
        exec(compile(path.read_text(), str(path), "exec"), made.__dict__)
        return made

    return write


LOSSES = {
    "a helper of another file": "import my_helper\ndef loss(net, x):\n    return my_helper.shaped(net(x)).mean()",
    "by name": "from my_helper import shaped\ndef loss(net, x):\n    return shaped(net(x)).mean()",
    "within": "def loss(net, x):\n    from my_helper import shaped\n    return shaped(net(x)).mean()",
    "within, as a module": "def loss(net, x):\n    import my_helper as h\n    return h.shaped(net(x)).mean()",
}


@pytest.mark.parametrize("text", LOSSES.values(), ids=LOSSES)
def test_an_edited_helper_is_another_key(disk: Disk, module: Callable[[str, str], ModuleType], text: str) -> None:
    def traced(helper: str) -> bool:
        module("my_helper", helper)
        return disk.traced(module("my_loss", text).loss, *net_and_rows())

    one, other = "def shaped(y):\n    return y.square()", "def shaped(y):\n    return 2 * y.square() + y"
    assert [traced(helper) for helper in (one, one, other, one)] == [True, False, True, False]
    scaled = "SCALE = {}\ndef shaped(y):\n    return SCALE * y.square()"
    assert [traced(scaled.format(number)) for number in (2.0, 3.0)] == [True, True]


def test_a_helper_that_is_not_loaded_is_no_part_of_a_key(
    disk: Disk, module: Callable[[str, str], ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module("my_helper", "def shaped(y):\n    return y.square()")
    loss = module("my_loss", LOSSES["within"]).loss
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_helper")
    step, (net, x) = disk.compile(loss), net_and_rows()
    try:
        assert step.why_not(net, x) is None
        assert not disk.records() and "my_helper" in sys.modules
        sys.modules["my_helper"].shaped = lambda y: 3 * y  # type: ignore[attr-defined]
        assert agrees(step, net, x) is None
    finally:
        sys.modules.pop("my_helper", None)


NETWORK = """
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x):
            return self.layer(x){}

    class Batch:
        def __init__(self, x):
            self.x = x

        def inputs(self):
            return self.x{}

    def loss(net, batch):
        return net(batch.inputs()).square().mean()
"""


def test_edited_classes_of_arguments_are_another_key(disk: Disk, module: Callable[[str, str], ModuleType]) -> None:
    def traced(*edits: str) -> bool:
        made = module("my_net", NETWORK.format(*edits))
        return disk.traced(made.loss, made.Net(), made.Batch(torch.randn(20, 3)))

    assert [traced("", ""), traced("", ""), traced(" * 2", ""), traced("", " + 1")] == [True, False, True, True]


def test_what_is_frozen_and_modes_are_part_of_the_key(disk: Disk) -> None:
    net, x = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1)), torch.randn(20, 3)

    def loss(net: nn.Module, x: Tensor) -> Tensor:
        return net(x).square().mean()

    assert disk.traced(loss, net.eval(), x)
    net[0].requires_grad_(False)
    assert disk.traced(loss, net, x)
    net.train()
    assert "draws random numbers" in str(disk.compile(loss).why_not(net, x))
    net.eval()
    assert not disk.traced(loss, net, x)


def test_a_hook_is_seen_whatever_is_on_disk(disk: Disk) -> None:
    net, x = net_and_rows()

    def loss(net: nn.Module, x: Tensor) -> Tensor:
        return net(x).square().mean()

    assert disk.traced(loss, net, x)
    handle = net.register_forward_hook(lambda module, args, y: 3 * y)
    step = disk.compile(loss)
    assert "hook" in str(agrees(step, net, x))
    handle.remove()
    assert agrees(step, net, x) is None
    assert not disk.traced(loss, net, x)


def test_distributions_that_check_their_arguments(disk: Disk) -> None:
    def made(check: bool | None) -> Callable[..., Any]:
        def loss(net: nn.Module, x: Tensor, action: Tensor) -> Tensor:
            return -torch.distributions.Categorical(logits=net(x), validate_args=check).log_prob(action).mean()

        return loss

    arguments = mlp(3, 8, 4), torch.randn(20, 3), torch.randint(4, (20,))
    for _ in range(2):
        assert agrees(disk.compile(made(None)), *arguments) is None
        assert "chooses by the data" in str(agrees(disk.compile(made(True)), *arguments))
        assert agrees(disk.compile(made(False)), *arguments) is None
    assert disk.traces == 3


def test_a_setting_that_an_if_asks_about_is_part_of_the_key(disk: Disk) -> None:
    def loss(net: nn.Module, x: Tensor, coef: float, scale: float) -> Tensor:
        return (net(x).square() if coef > 0 else net(x).abs()).mean() * scale

    net, x = net_and_rows()
    assert disk.traced(loss, net, x, 1.0, 2.0)
    assert not disk.traced(loss, net, x, 1.0, 3.0)
    assert disk.traced(loss, net, x, -1.0, 2.0)
    assert not disk.traced(loss, net, x, -1.0, 2.0)


REFUSED = """
    def loss(net, x):
        y = net(x)
        return y.mean() if y.sum() > 0 else y.sum()
"""


def test_a_refusal_is_kept_with_its_line(disk: Disk, module: Callable[[str, str], ModuleType]) -> None:
    net, x = net_and_rows()
    first, second = (disk.compile(module("my_loss", REFUSED).loss).why_not(net, x) for _ in range(2))
    assert first == second and str(first).startswith("my_loss.py:4 chooses by the data")
    assert disk.traces == 1
    moved = disk.compile(module("my_loss", "\n\n" + REFUSED).loss).why_not(net, x)
    assert str(moved).startswith("my_loss.py:6 chooses by the data")


CALLS: list[int] = []


def test_whether_a_refusal_is_for_good_is_kept(disk: Disk) -> None:
    def loss(net: nn.Module, x: Tensor) -> Tensor:
        CALLS.append(1)
        return net(x).square().mean()

    for _ in range(2):
        step = disk.compile(loss)
        assert "changes CALLS" in str(step.why_not(*net_and_rows()))
        assert step.why_not(mlp(5, 2), torch.randn(9, 5)) == step.why_not(*net_and_rows())
        assert not CALLS
    assert disk.traces == 2  # one for each network, whose code it might have been


def test_a_word_in_a_reason_is_no_flag(disk: Disk) -> None:
    def loss(net: nn.Module, x: Tensor, strict: bool) -> Tensor:
        if strict:
            raise ValueError("it changes nothing")
        return net(x).square().mean()

    net, x = net_and_rows()
    step = disk.compile(loss)
    assert "it changes nothing" in str(step.why_not(net, x, True))
    assert step.why_not(net, x, False) is None


def test_a_reason_that_may_pass_is_not_kept(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "coef.txt"

    def loss(net: nn.Module, x: Tensor) -> Tensor:
        return float(path.read_text()) * net(x).square().mean()

    net, x = net_and_rows()
    assert "FileNotFoundError" in str(disk.compile(loss).why_not(net, x))
    path.write_text("2")
    assert disk.traced(loss, net, x)
    path.write_text("3")  # which no key can know: the comparison sees it
    assert disk.traced(loss, net, x)


def damaged(content: bytes) -> bytes:
    return content[:-7]


def of_nobody(content: bytes) -> bytes:
    return b"not a record"


def with_a_checksum(text: str) -> Callable[[bytes, str], bytes]:
    def made(_: bytes, name: str) -> bytes:
        return hashlib.sha256(name.encode() + b"\0" + text.encode()).digest() + text.encode()

    return made


@pytest.mark.parametrize("suffix", ["json", "bin"])
@pytest.mark.parametrize("damage", [damaged, of_nobody, lambda _: b""], ids=["cut", "foreign", "empty"])
def test_damaged_files_are_made_again(disk: Disk, damage: Callable[[bytes], bytes], suffix: str) -> None:
    def loss(net: nn.Module, x: Tensor) -> Tensor:
        return net(x).square().mean()

    assert disk.traced(loss, *net_and_rows())
    for path in disk.place.glob(f"*.{suffix}"):
        path.write_bytes(damage(path.read_bytes()))
    assert disk.traced(loss, *net_and_rows())
    assert not disk.traced(loss, *net_and_rows())


@pytest.mark.parametrize("text", ["{}", "[1, 2]", '{"refused": 3}', '{"code": "../x", "layout": {}}', "null"])
def test_records_that_cannot_be_read_are_made_again(disk: Disk, text: str) -> None:
    def loss(net: nn.Module, x: Tensor) -> Tensor:
        return net(x).square().mean()

    assert disk.traced(loss, *net_and_rows())
    (path,) = disk.records()
    path.write_bytes(with_a_checksum(text)(b"", path.name))
    assert disk.traced(loss, *net_and_rows())


PROGRAM = """
import sys
import torch
torch.manual_seed(0)
before = set(sys.modules)
import headrace as hr
from tests.bindings.losses import ppo_categorical

loss, arguments = ppo_categorical(64)
step = hr.compile(loss)
value, _ = step(*arguments)
assert step.why_not(*arguments) is None
gradients = [p.grad.double().sum().item() for p in arguments[0].parameters() if p.grad is not None]
traced = "headrace.kernels.rows.tracing.trace_loss" in sys.modules
new = [name for name in sys.modules if name not in before]
tracers = [n for n in new if n.startswith(("torch.fx", "torch._decomp", "torch._functorch", "torch._subclasses"))]
import json
print(json.dumps([value.item(), gradients, traced, tracers, "numba" in sys.modules]))
"""


def test_processes_that_write_at_once_and_one_that_reads(tmp_path: Path) -> None:
    environment = os.environ | {"HEADRACE_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT), "HEADRACE_THREADS": "1"}

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM]
        return subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    def result(process: subprocess.Popen[str]) -> list[Any]:
        out, _ = process.communicate()
        assert process.returncode == 0
        return list(json.loads(out.splitlines()[-1]))

    first, second = (result(process) for process in [start(), start()])
    third = result(start())
    assert first[:2] == second[:2] == third[:2]
    assert first[2] or second[2]
    assert third[2:] == [False, [], False]  # neither traced nor any of torch's tracers imported, nor Numba
    assert len(list(tmp_path.glob("headrace_loss_*.json"))) == 1
