"""hr.compile(): what plain PyTorch computes, or a refusal with the line that it is about; nothing else."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headrace as hr
from tests.bindings.losses import ALL, Agent, Made, Settings, mlp, ppo_categorical, replay, rollout


def by_autograd(loss: Any, arguments: tuple[Any, ...]) -> tuple[Tensor, list[Tensor | None]]:
    """Loss and gradients of plain PyTorch in float64; the arguments stay as they are."""
    double = torch.utils._pytree.tree_map(
        lambda x: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x, copy.deepcopy(arguments)
    )
    for module in double:
        if isinstance(module, nn.Module):
            module.double()
    returned = loss(*double)
    value = returned[0] if isinstance(returned, tuple) else returned
    learned = parameters(loss, double)
    return value.detach(), list(torch.autograd.grad(value, learned, allow_unused=True))


def parameters(loss: Any, arguments: tuple[Any, ...]) -> list[Tensor]:
    """The learned tensors among a loss' arguments."""
    found: list[Tensor] = []
    for argument in arguments:
        if isinstance(argument, nn.Module):
            found += [p for p in argument.parameters() if p.requires_grad]
        elif isinstance(argument, Tensor) and argument.requires_grad:
            found.append(argument)
    return found


def near(found: Tensor, wanted: Tensor, largest: float) -> bool:
    return float((found.double() - wanted).abs().max()) <= 2e-5 * max(float(wanted.abs().max()), 1e-2 * largest)


@pytest.mark.parametrize("make", ALL)
def test_gradients_are_those_of_autograd(make: Any) -> None:
    loss, arguments = make(100)
    step = hr.compile(loss)
    assert step.why_not(*arguments) is None
    for rows in (100, 37, 64, 1 if make.__name__ not in ("ppo_categorical", "ppo_residual") else 2):
        if rows == 1 and "norm" in make.__name__:
            continue  # of which torch takes no statistics
        batch = make(rows)[1]
        arguments = tuple(
            old if isinstance(old, nn.Module) or (isinstance(old, Tensor) and old.dim() == 0) else new
            for old, new in zip(arguments, batch, strict=True)
        )
        for parameter in parameters(loss, arguments):
            parameter.grad = None
        closed = [cell.cell_contents for cell in loss.__closure__ or () if isinstance(cell.cell_contents, nn.Module)]
        for module in closed:
            module.requires_grad_(False)
        returned = step(*arguments)
        found = [parameter.grad for parameter in parameters(loss, arguments)]
        for module in closed:
            module.double()
        value, wanted = by_autograd(loss, arguments)
        for module in closed:
            module.float()
        assert float(returned[0] if isinstance(returned, tuple) else returned) == pytest.approx(
            float(value), rel=1e-4, abs=1e-5
        )
        largest = max(float(x.abs().max()) for x in wanted if x is not None)
        for one, other in zip(found, wanted, strict=True):
            assert (one is None) == (other is None)
            assert one is None or near(one, other, largest)


def test_what_the_loss_returns_comes_back() -> None:
    loss, arguments = ppo_categorical(70)
    value, metrics = hr.compile(loss)(*arguments)
    wanted, others = loss(*arguments)
    torch.testing.assert_close(value, wanted.detach(), rtol=1e-5, atol=1e-6)
    assert not value.requires_grad and metrics.keys() == others.keys()
    for name, metric in metrics.items():
        torch.testing.assert_close(metric, others[name].detach(), rtol=1e-5, atol=1e-6)


def with_numbers(net: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Any]]:
    y = net(x)
    scale = y.abs().mean().item()
    loss = (y / (scale + 1)).square().mean()
    count = (y > 0).sum().tolist()
    return loss, {
        "scale": scale,
        "share": count / y.numel(),
        "mean": y.mean(),
        "twice": 2 * (scale - 1),
        "count": count,
    }


def test_numbers_of_tensors_are_numbers_again() -> None:
    """Numbers that are read from tensors have no gradient, whether the loss computes with them or returns them."""
    net, x = mlp(6, 16, 1), torch.randn(70, 6)
    step = hr.compile(with_numbers)
    for rows in (70, 33):
        net.zero_grad()
        _, found = step(net, x[:rows])
        gradients = [p.grad for p in net.parameters()]
        net.zero_grad()
        loss, wanted = with_numbers(net, x[:rows])
        loss.backward()
        assert step.why_not(net, x[:rows]) is None
        for one, p in zip(gradients, net.parameters(), strict=True):
            torch.testing.assert_close(one, p.grad, rtol=1e-4, atol=1e-7)
        assert {name: type(value) for name, value in found.items()} == {name: type(wanted[name]) for name in wanted}
        assert all(
            float(found[name]) == pytest.approx(torch.as_tensor(wanted[name]).item(), rel=1e-5) for name in wanted
        )


def test_gradients_are_added_to_those_that_are_there() -> None:
    loss, arguments = ppo_categorical(50)
    step = hr.compile(loss)
    step(*arguments)
    once = [parameter.grad.clone() for parameter in arguments[0].parameters() if parameter.grad is not None]
    step(*arguments)
    twice = [parameter.grad for parameter in arguments[0].parameters() if parameter.grad is not None]
    assert all(torch.equal(2 * one, two) for one, two in zip(once, twice, strict=True))
    assert arguments[0].log_std.grad is None  # which the loss does not use


def test_bits_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    loss, arguments = ppo_categorical(1100)
    for threads in ("1", "2", "3"):
        monkeypatch.setenv("HEADRACE_THREADS", threads)
        arguments[0].zero_grad()
        value, _ = hr.compile(loss)(*arguments)
        found.append([value, *(parameter.grad for parameter in arguments[0].actor.parameters())])
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True))


def test_several_threads_may_call_at_once() -> None:
    loss, arguments = ppo_categorical(200)
    step = hr.compile(loss)
    step(*arguments)
    batches = [rollout_of(n) for n in range(4)]  # before threads begin: all have one random generator
    wanted = {n: loss(arguments[0], batches[n], arguments[2])[0].item() for n in range(4)}
    found: dict[int, float] = {}

    def work(number: int) -> None:
        agent = copy.deepcopy(arguments[0])
        for _ in range(20):
            found[number] = step(agent, batches[number], arguments[2])[0].item()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == pytest.approx(wanted, rel=1e-5)


def rollout_of(seed: int) -> dict[str, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return rollout(200, 4, torch.randint(3, (200,)))


def test_settings_and_parameters_are_read_at_each_call() -> None:
    loss, (agent, batch, _) = ppo_categorical(60)
    step = hr.compile(loss)
    for settings in (Settings(), Settings(clip=0.01, value_coef=2.0), Settings(normalize=True)):
        torch.testing.assert_close(step(agent, batch, settings)[0], loss(agent, batch, settings)[0].detach())
    with torch.no_grad():
        agent.actor[0].weight.mul_(2)
    agent.critic[0] = nn.Linear(4, 32)
    torch.testing.assert_close(step(agent, batch, Settings())[0], loss(agent, batch, Settings())[0].detach())


COEF = 0.5


def scaled(net: nn.Module, x: Tensor) -> Tensor:
    return COEF * net(x).mean()


def test_what_the_code_reads_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = mlp(3, 8, 1), torch.randn(20, 3)
    step = hr.compile(scaled)
    assert step(net, x).item() == pytest.approx(scaled(net, x).item(), rel=1e-5)
    monkeypatch.setattr("tests.bindings.test_compiled_losses.COEF", 3.0)
    assert step(net, x).item() == pytest.approx(scaled(net, x).item(), rel=1e-5)
    net.register_forward_hook(lambda module, inputs, output: output * 2)
    assert "hook" in str(step.why_not(net, x))
    assert step(net, x).item() == pytest.approx(scaled(net, x).item(), rel=1e-5)


square = torch.zeros(3)  # a name of this module that is an attribute in the loss below


def squares(net: nn.Module, x: Tensor) -> Tensor:
    return net(x).square().mean()


def test_a_variable_that_is_called_like_an_attribute_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = mlp(3, 8, 1), torch.randn(20, 3)
    step = hr.compile(squares)
    step(net, x)
    (program,) = step._programs
    monkeypatch.setattr("tests.bindings.test_compiled_losses.square", torch.ones(3))
    step(net, x)
    assert step._programs == [program]


def test_frozen_layers_and_evaluation_mode() -> None:
    loss, (net, batch) = next(make for make in ALL if "norm" in make.__name__)(40)
    step = hr.compile(loss)
    step(net, batch)
    net.net[1].weight.requires_grad_(False)
    net.eval()
    net.zero_grad()
    found = step(net, batch)
    assert found.item() == pytest.approx(loss(net, batch).item(), rel=1e-5) and net.net[1].weight.grad is None


def test_running_statistics_are_written() -> None:
    loss, (net, batch) = next(make for make in ALL if "norm" in make.__name__)(40)
    other = copy.deepcopy(net)
    hr.compile(loss)(net, batch)
    loss(other, batch)
    for one, two in zip(net.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(one, two)


def test_memory_may_lie_in_any_way() -> None:
    loss, (agent, batch, settings) = ppo_categorical(90)
    step = hr.compile(loss)
    wanted = step(agent, batch, settings)[0].item()
    turned = batch | {"obs": batch["obs"].t().contiguous().t(), "action": batch["action"].repeat_interleave(2)[::2]}
    assert step(agent, turned, settings)[0].item() == wanted


# refusals


def asks(net: nn.Module, x: Tensor) -> Tensor:
    loss = net(x).mean()
    return loss if loss.item() > 0 else -loss  # asks


def writes(net: nn.Module, x: Tensor) -> tuple[Tensor, str]:
    loss = net(x).mean()
    return loss, f"{loss.item():.2f}"  # writes


def branches(net: nn.Module, x: Tensor) -> Tensor:
    loss = net(x).mean()
    if loss > 0:  # branches
        loss = 2 * loss
    return loss


def neighbours(net: nn.Module, x: Tensor) -> Tensor:
    y = net(x)
    return (y[1:] - y[:-1]).square().mean()  # neighbours


def contrasts(net: nn.Module, x: Tensor) -> Tensor:
    y = net(x)
    return (y @ y.T).logsumexp(1).mean()  # contrasts


def is_double(net: nn.Module, x: Tensor) -> Tensor:
    return net(x).double().square().mean().float()  # is_double


def draws(net: nn.Module, x: Tensor) -> Tensor:
    return net(x + torch.randn_like(x)).mean()  # draws


def leaves(net: nn.Module, x: Tensor) -> Tensor:
    return net(x).mean() * float(x.numpy().mean())  # leaves


def sorts_rows(net: nn.Module, x: Tensor) -> Tensor:
    return net(x).sort(0)[0].mean()  # sorts_rows


def cuts_to_nothing(net: nn.Module, x: Tensor) -> Tensor:
    return net(x).mean() + x[:, :0].sum()  # cuts_to_nothing


def signs_of_integers(net: nn.Module, x: Tensor) -> Tensor:
    return net(x * x.long().sign()).mean()  # signs_of_integers


REFUSED = {
    signs_of_integers: "sign of integers",
    cuts_to_nothing: "without numbers",
    asks: "the data",
    writes: "as text",
    branches: "chooses by the data",
    neighbours: "rows",
    contrasts: "each row multiplied by each other row",
    is_double: "float64",
    draws: "random numbers",
    leaves: "leaves PyTorch",
    sorts_rows: "sorts the rows",
}


@pytest.mark.parametrize("loss", REFUSED)
def test_what_is_refused_names_the_line_and_runs_in_plain_pytorch(
    loss: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    net, x = mlp(3, 8, 1), torch.randn(20, 3)
    step = hr.compile(loss)
    reason = step.why_not(net, x)
    line = 1 + Path(__file__).read_text().splitlines().index(
        next(text for text in Path(__file__).read_text().splitlines() if text.endswith(f"# {loss.__name__}"))
    )
    assert REFUSED[loss] in str(reason)
    assert str(reason).startswith(f"test_compiled_losses.py:{line} "), reason
    wanted = by_autograd(loss, (net, x))[1] if loss not in (draws, leaves) else []
    for _ in range(2):
        net.zero_grad()
        step(net, x)
    assert capsys.readouterr().err.count("is not compiled") == 1
    for parameter, gradient in zip(net.parameters(), wanted, strict=False):
        torch.testing.assert_close(parameter.grad, gradient.float(), rtol=1e-4, atol=1e-6)


def test_tensors_that_do_not_fit_together_are_named() -> None:
    step = hr.compile(lambda net, batch: net(batch["x"]).mean() + batch["y"].mean())
    reason = step.why_not(mlp(3, 8, 1), {"x": torch.randn(20, 3), "y": torch.randn(7)})
    assert "batch.x has 20 rows and batch.y has 7" in str(reason)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.calls = mlp(3, 8, 1), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.net(x)  # type: ignore[no-any-return]


def test_a_module_that_changes_itself_is_refused_and_left_as_it_was() -> None:
    net = Counting()
    assert "changes net.calls" in str(hr.compile(lambda net, x: net(x).mean()).why_not(net, torch.randn(9, 3)))
    assert net.calls == 0


def test_tracing_leaves_gradients_and_random_numbers_alone() -> None:
    loss, arguments = ppo_categorical(30)
    state, checks = torch.get_rng_state(), torch.distributions.Distribution._validate_args
    assert hr.compile(loss).why_not(*arguments) is None
    assert torch.equal(state, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in arguments[0].parameters())
    assert torch.distributions.Distribution._validate_args is checks


def test_a_loss_that_learns_reaches_its_end() -> None:
    torch.manual_seed(0)
    net, batch = mlp(6, 32, 1), replay(256)

    def loss(net: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(net(batch.obs).squeeze(-1), batch.obs[:, 0] * 0.5)

    step, optimizer = hr.compile(loss), torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        value = step(net, batch)
        optimizer.step()
    assert value.item() < 1e-3


def test_an_agent_of_several_arguments() -> None:
    agent: Made = ppo_categorical(10)
    assert isinstance(agent[1][0], Agent)
