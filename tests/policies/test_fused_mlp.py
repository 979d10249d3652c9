"""Stacks of layers as one compiled call: torch's outputs and gradients, its parameters, and torch where it must be."""

import copy
from itertools import pairwise

import pytest
import torch
from torch import nn

from headrace.bindings.compiled.row_functions import ModuleProgram
from headrace.policies import fused_mlp
from headrace.policies.fused_mlp import FusedMLP

PAYS = fused_mlp.pays
ACTIVATIONS = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
    "mish": nn.Mish,
}


@pytest.fixture(autouse=True, scope="module")
def always():
    """Use the compiled stack also where torch is faster, unless a test changes that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_mlp, "pays", lambda *_: True)
        yield


def stack(sizes, activation="relu", layer_norm=False, seed=0):
    """A network with random parameters, those of norms too."""
    torch.manual_seed(seed)
    modules = []
    for inputs, outputs in pairwise(sizes):
        modules += [nn.Linear(inputs, outputs), *([nn.LayerNorm(outputs)] if layer_norm else [])]
        modules.append(ACTIVATIONS[activation]())
    modules = modules[: -2 if layer_norm else -1]  # the last layer is linear
    network = FusedMLP(*modules)
    with torch.no_grad():
        for module in network:
            if isinstance(module, nn.LayerNorm):
                module.weight.normal_()
                module.bias.normal_()
    return network


def gradients(network, x, delta):
    """Outputs, and gradients of sum(output * delta) at the input and the parameters."""
    x = x.clone().requires_grad_()
    output = network(x)
    return output.detach(), *torch.autograd.grad((output * delta).sum(), [x, *network.parameters()])


def plain(network):
    other = copy.deepcopy(network)
    other.fused = False
    return other


@pytest.fixture
def calls(monkeypatch):
    """Names of programs that are called: of outputs, which have a row for each sample, or of gradients."""
    names, run = [], ModuleProgram.run

    def noted(own, *given):
        names.append("evaluate" if own.program.with_rows == [True] else "differentiate")
        return run(own, *given)

    monkeypatch.setattr(ModuleProgram, "run", noted)
    return names


@pytest.mark.parametrize(
    ("sizes", "batch", "activation", "layer_norm"),
    [
        ([1, 1], 1, "relu", False),
        ([3, 130, 7, 1], 300, "tanh", False),
        ([40, 33, 64, 2], 65, "elu", True),
        ([17, 64, 5], 600, "silu", False),
        ([5, 16, 16, 16, 3], 9, "gelu", True),
        ([100, 24, 1], 129, "leaky_relu", False),
        ([8, 50, 4], 64, "mish", True),
    ],
)
def test_outputs_and_gradients_are_torchs(sizes, batch, activation, layer_norm, seed=0):
    network = stack(sizes, activation, layer_norm, seed)
    x, delta = 2 * torch.randn(batch, sizes[0]), torch.randn(batch, sizes[-1])
    ours, others = gradients(network, x, delta), gradients(plain(network), x, delta)
    exact = gradients(plain(network).double(), x.double(), delta.double())
    for mine, theirs, truth in zip(ours, others, exact, strict=True):
        # normalising a nearly constant row makes rounding errors large, torch's in float32 too
        relative = 1e-4 if layer_norm and min(sizes) < 4 else 5e-6
        tolerance = relative * max(1, truth.abs().max()) + 4 * (theirs - truth).abs().max()
        assert (mine - truth).abs().max() <= tolerance
    with torch.no_grad():
        torch.testing.assert_close(network(x), ours[0], rtol=0, atol=0)


def test_gradients_pass_gradcheck_by_differences():
    network = stack([3, 8, 2], "tanh")
    x = torch.randn(5, 3, requires_grad=True)
    assert torch.autograd.gradcheck(network, (x,), eps=1e-2, atol=2e-3, rtol=1e-2)


def test_parameters_and_state_dict_are_those_of_sequential():
    network = stack([4, 8, 2], layer_norm=True)
    other = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))
    other.load_state_dict(network.state_dict())
    x = torch.randn(70, 4)
    torch.testing.assert_close(network(x), other(x), rtol=1e-5, atol=1e-6)
    assert [name for name, _ in network.named_parameters()] == [name for name, _ in other.named_parameters()]


def test_it_trains_as_torch_does(calls):
    network = stack([5, 32, 1], "tanh")
    other, x = plain(network), torch.randn(200, 5)
    target = x.square().sum(1, keepdim=True).sin()
    for each in (network, other):
        optimizer = torch.optim.Adam(each.parameters(), 1e-2)
        for _ in range(50):
            optimizer.zero_grad()
            loss = (each(x) - target).square().mean()
            loss.backward()
            optimizer.step()
    assert calls.count("evaluate") == calls.count("differentiate") == 50
    for mine, theirs in zip(network.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def test_shapes_strides_and_views():
    network = stack([4, 8, 3])
    other, x = plain(network), torch.randn(4, 50)
    for rows in (x.t(), x.t()[::2], x.t().expand(2, 50, 4), x[:, 0]):
        torch.testing.assert_close(network(rows), other(rows), rtol=1e-5, atol=1e-6)
        mine, theirs = (torch.autograd.grad(net(rows).sum(), net.parameters()) for net in (network, other))
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    assert network(torch.empty(0, 4)).shape == (0, 3)
    with pytest.raises(RuntimeError, match="shapes"):
        network(torch.randn(5, 6))


def test_frozen_parameters_get_no_gradient(calls):
    network = stack([4, 8, 3])
    network[0].weight.requires_grad_(False)
    network(torch.randn(9, 4)).sum().backward()
    assert calls == ["evaluate", "differentiate"]
    assert network[0].weight.grad is None and network[0].bias.grad is not None


def test_changing_parameters_before_backward_is_an_error():
    network = stack([4, 8, 3])
    output = network(torch.randn(9, 4))
    with torch.no_grad():
        network[2].weight.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_bits_do_not_depend_on_threads(monkeypatch):
    network, results = stack([40, 200, 200, 3], "silu"), []
    x, delta = torch.randn(500, 40), torch.randn(500, 3)
    for threads in ("1", "2", "3"):
        monkeypatch.setenv("HEADRACE_THREADS", threads)
        results.append(gradients(network, x, delta))
    for one, *others in zip(*results, strict=True):
        assert all(torch.equal(one, other) for other in others)


def test_nan_stays_in_its_row():
    network, x = stack([3, 20, 2], "relu"), torch.randn(9, 3)
    x[4, 1] = torch.nan
    output = network(x)
    assert output[4].isnan().all() and output[[0, 3, 5, 8]].isfinite().all()


def test_second_derivatives_are_plain_torchs():
    network = stack([3, 8, 1], "tanh")
    x = torch.randn(6, 3)

    def penalty(net):
        rows = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(net(rows).sum(), rows, create_graph=True)
        return torch.autograd.grad((slope.norm(dim=1) - 1).square().sum(), net.parameters(), allow_unused=True)[:3]

    torch.testing.assert_close(penalty(network), penalty(plain(network)), rtol=1e-4, atol=1e-6)


def hook(network):
    network[0].register_forward_hook(lambda *_: None)


def own_forward(network):
    forward = network[0].forward
    network[0].forward = lambda features: forward(features) + 1


@pytest.mark.parametrize(
    "change",
    [
        lambda network: setattr(network, "fused", False),
        lambda network: network.double(),
        lambda network: network.insert(1, nn.Dropout(0.0)),
        lambda network: network.insert(1, nn.ELU(0.5)),
        lambda network: network.__setitem__(2, nn.Linear(8, 3, bias=False)),
        lambda network: network.__setitem__(2, nn.utils.parametrizations.weight_norm(nn.Linear(8, 3))),
        lambda network: network.__setitem__(2, nn.Sequential(nn.Linear(8, 2000), nn.Linear(2000, 3))),
        hook,
        own_forward,
    ],
)
def test_plain_torch_where_the_kernel_does_not_apply(change, calls):
    network = stack([4, 8, 3])
    change(network)
    x = torch.randn(5, 4, dtype=network[0].weight.dtype)
    torch.testing.assert_close(network(x), nn.Sequential.forward(network, x), rtol=0, atol=0)
    network(x).sum().backward()
    assert calls == []


def test_transforms_autocast_and_tracing_are_plain_torchs(calls):
    network, x = stack([4, 8, 3], "tanh"), torch.randn(5, 4)
    expected = plain(network)(x)
    torch.testing.assert_close(torch.func.vmap(network)(x), expected)
    jacobian = torch.func.jacrev(lambda row: network(row))(x[0])
    torch.testing.assert_close(jacobian, torch.func.jacfwd(lambda row: network(row))(x[0]))
    with torch.autocast("cpu", torch.bfloat16):
        assert network(x).dtype == torch.bfloat16
    torch.testing.assert_close(torch.export.export(network, (x,)).module()(x), expected)
    torch.testing.assert_close(torch.jit.trace(network, (x,), check_trace=False)(x), expected)
    with torch.device("meta"):
        assert copy.deepcopy(network).to("meta")(torch.empty(5, 4)).shape == (5, 3)
    assert calls == []


def test_torch_where_that_is_faster(calls, monkeypatch):
    monkeypatch.setattr(fused_mlp, "pays", PAYS)
    network, wide, wider = stack([4, 64, 3]), stack([4, 200, 3]), stack([4, 600, 3])
    network(torch.randn(64, 4))
    wide(torch.randn(32, 4))
    wider(torch.randn(256, 4))
    with torch.no_grad():
        network(torch.randn(8, 4))
        wider(torch.randn(256, 4))
    assert calls == []
    network(torch.randn(128, 4))
    wide(torch.randn(64, 4))
    with torch.no_grad():
        network(torch.randn(32, 4))
    assert calls == ["evaluate"] * 3
