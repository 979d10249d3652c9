"""hr.compile(): attention is traced without switches of torch's; what is off meanwhile is so in one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

import headrace as hr
from headrace.kernels.rows.tracing import trace_loss
from headrace.kernels.rows.tracing.as_traced import as_traced
from headrace.kernels.rows.tracing.inputs import given
from headrace.kernels.rows.tracing.trace_loss import trace
from tests.bindings.test_compiled_losses_kept import agrees

BATCH, HEADS, LENGTH, KEYS, WIDTH = 12, 2, 4, 5, 3


class Attention(nn.Module):
    """Attention over entities of each row, of its own projections."""

    def __init__(self, attend: Callable[..., Tensor], key_heads: int = HEADS) -> None:
        super().__init__()
        self.query = nn.Linear(6, HEADS * WIDTH)
        self.key, self.value = (nn.Linear(6, key_heads * WIDTH) for _ in range(2))
        self.attend = [attend]

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        parts = (layer(z) for layer, z in ((self.query, x), (self.key, y), (self.value, y)))
        heads = [z.unflatten(-1, (-1, WIDTH)).transpose(1, 2) for z in parts]
        return self.attend[0](*heads).transpose(1, 2).flatten(2)


def bool_mask() -> Tensor:
    seen = torch.ones(LENGTH, KEYS, dtype=torch.bool)
    seen[0, 1:], seen[2, :2] = False, False
    return seen


WAYS: dict[str, Callable[..., Tensor]] = {
    "plain": F.scaled_dot_product_attention,
    "causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "scale": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3),
    "mask": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(LENGTH, KEYS).tril(1)),
    "of heads": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
}


@pytest.mark.parametrize("way", WAYS)
def test_attention(way: str) -> None:
    torch.manual_seed(0)
    net = Attention(WAYS[way], 1 if way == "of heads" else HEADS)
    x, y = torch.randn(BATCH, LENGTH, 6), torch.randn(BATCH, KEYS, 6)
    assert agrees(hr.compile(lambda net, x, y: net(x, y).square().mean()), net, x, y) is None


def test_attention_with_a_mask_of_a_buffer() -> None:
    torch.manual_seed(0)
    net, seen = Attention(F.scaled_dot_product_attention), bool_mask()
    net.register_buffer("seen", seen)
    net.attend[0] = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=net.seen)
    x, y = torch.randn(BATCH, LENGTH, 6), torch.randn(BATCH, KEYS, 6)
    assert agrees(hr.compile(lambda net, x, y: net(x, y).square().mean()), net, x, y) is None


def test_attention_of_torchs_module() -> None:
    torch.manual_seed(0)
    net, x = nn.MultiheadAttention(6, 2, batch_first=True), torch.randn(BATCH, LENGTH, 6)
    assert agrees(hr.compile(lambda net, x: net(x, x, x, need_weights=False)[0].square().mean()), net, x) is None


def in_another_thread(function: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def checks() -> bool:
    try:
        Normal(torch.zeros(1), torch.full((1,), -1.0))
    except ValueError:
        return True
    return False


@pytest.fixture
def checked() -> Iterator[None]:
    """Distributions check their arguments: importing Stable-Baselines3 turns that off."""
    before = checks()
    Distribution.set_default_validate_args(True)
    yield
    Distribution.set_default_validate_args(before)


@pytest.mark.usefixtures("checked")
def test_other_threads_check_distributions_while_one_traces() -> None:
    assert checks()
    with as_traced():
        assert not checks() and in_another_thread(checks)
        with as_traced():
            assert not checks() and in_another_thread(checks)
        assert not checks()
    assert checks() and type(vars(Distribution)["_validate_args"]) is bool


@pytest.mark.usefixtures("checked")
def test_a_default_that_is_set_meanwhile_stays() -> None:
    try:
        with as_traced():
            in_another_thread(lambda: Distribution.set_default_validate_args(False))
        assert not checks()
    finally:
        Distribution.set_default_validate_args(True)
    assert checks()


def test_kernels_of_attention_stay_on_while_one_traces() -> None:
    def loss(net: nn.Module, x: Tensor) -> Tensor:
        if not torch.backends.cuda.flash_sdp_enabled():
            raise AssertionError("flash attention is off")
        return net(x).square().mean()

    assert torch.backends.cuda.flash_sdp_enabled()
    assert hr.compile(loss).why_not(nn.Linear(3, 1), torch.randn(20, 3)) is None


def writes_to_its_own(net: nn.Module, x: Tensor) -> Tensor:
    h = net(x)
    y = torch.zeros_like(h).copy_(h).mul_(2.0)
    return (y.neg_().add_(h) * h).mean()


def writes_where_a_view_looks(net: nn.Module, x: Tensor) -> Tensor:
    h = net(x) * 1.0
    first = h[:, 0]
    h.mul_(3.0)
    return (first * h[:, 1]).mean()


def writes_to_a_view(net: nn.Module, x: Tensor) -> Tensor:
    h = net(x) * 1.0
    h.view(-1, 2)[:, 1].sub_(x[:, 0])
    left, right = (h + 1).unsafe_chunk(2, 1)
    return (h.square().sum(1) + left.mul_(2.0).sum(1) * right.sum(1)).mean()


def writes_to_parts_that_meet(net: nn.Module, x: Tensor) -> Tensor:
    h = net(x) * 1.0
    left, whole = h[:, :1], h[:, :2]
    left.add_(1.0)
    return (whole.prod(1) + left[:, 0]).mean()


def writes_what_was_seen(net: nn.Module, x: Tensor) -> Tensor:
    h = net(x)
    y = h + 1
    before = y + h
    y.add_(x[:, :2])
    return (before * y).mean()


def writes_functions_of_its_own(net: nn.Module, x: Tensor) -> Tensor:
    h = net(x)
    limited = (h * 3).clamp_(-0.5, 0.7) + (h * 2).clamp_min_(0.1) * (h * 2).clamp_(max=0.2)
    positive = (h - 0.3).abs_().add_(0.5)
    roots = (positive * 1.0).sqrt_() + (positive * 1.0).log_() + (positive * 1.0).reciprocal_()
    return (limited + roots + (h * 1.0).exp_() + (h * 1.0).square_() + (positive * 1.0).pow_(1.5)).square().mean()


def turns_its_own(net: nn.Module, x: Tensor) -> Tensor:
    h = torch.stack((net(x), 2 * net(x).square())).transpose_(0, 1)
    return (h[:, 1] * h.flatten(1)[:, :2]).mean()


@pytest.mark.parametrize(
    "loss",
    [
        turns_its_own,
        writes_functions_of_its_own,
        writes_to_its_own,
        writes_where_a_view_looks,
        writes_to_a_view,
        writes_to_parts_that_meet,
        writes_what_was_seen,
    ],
)
def test_writes_in_place_are_seen_by_whoever_sees_them(loss: Callable[..., Tensor]) -> None:
    net, x = nn.Linear(3, 2), torch.randn(20, 3)
    step = hr.compile(loss)
    assert step.why_not(net, x) is None
    value = step(net, x)
    found = [p.grad for p in net.parameters()]
    net.zero_grad()
    wanted = loss(net, x)
    wanted.backward()
    torch.testing.assert_close(value, wanted.detach(), rtol=1e-5, atol=1e-6)
    for one, p in zip(found, net.parameters(), strict=True):
        torch.testing.assert_close(one, p.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("loss", "traces"),
    [
        (writes_functions_of_its_own, 3),  # one for each number of rows
        (turns_its_own, 3),
        (writes_where_a_view_looks, 7),  # the first shows that two are needed for each
    ],
)
def test_no_more_is_traced_than_is_needed(
    loss: Callable[..., Tensor], traces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, count = trace_loss.record, [0]

    def counted(*given: Any, **settings: Any) -> Any:
        count[0] += 1
        return made(*given, **settings)

    monkeypatch.setattr(trace_loss, "record", counted)
    net, x = nn.Linear(3, 2), torch.randn(20, 3)
    trace(loss, (net, x), given(loss, (net, x)))
    assert count[0] == traces


def test_a_normalised_network_is_traced_once_for_each_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_loss._Work, "_in_two", lambda work: pytest.fail("one trace was not enough"))
    policy = hr.QNetwork(hr.Box(-1, 1, (3,)), hr.Discrete(2), (8,), normalize_observation=True)

    def loss(policy: nn.Module, seen: Tensor) -> Tensor:
        return policy(seen).square().mean()  # type: ignore[no-any-return]

    arguments = policy, torch.randn(20, 3)
    assert any("clamp" in str(node.target) for node in trace(loss, arguments, given(loss, arguments)).graph.nodes)


def renormed(net: nn.Module, x: Tensor) -> Tensor:
    return torch.renorm(net(x), 2, 0, 1.0).sum()  # whose backward computes in float64


def shrunk(net: nn.Module, x: Tensor) -> Tensor:
    return nn.functional.softshrink(net(x) * 2, 0.3).sum()


@pytest.mark.parametrize("loss", [renormed, shrunk])
def test_a_refusal_of_a_gradient_names_the_line_of_what_it_is_of(loss: Callable[..., Tensor]) -> None:
    reason = hr.compile(loss).why_not(nn.Linear(3, 4), torch.randn(20, 3))
    line = loss.__code__.co_firstlineno + 1
    assert reason is not None and reason.startswith(f"test_losses_traced.py:{line} ")
