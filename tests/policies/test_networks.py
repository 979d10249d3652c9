"""Layers and encoders."""

import pytest
import torch
from gymnasium.spaces import Text

from headrace.data.rollout import Group
from headrace.data.spaces import Box, Dict, Discrete, MultiDiscrete
from headrace.policies.networks import ACTIVATIONS, MLP, Readout, make_encoder


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_mlp_equals_the_layers_written_out(activation):
    mlp, x = MLP(3, (5, 4), activation, seeded()), torch.randn(7, 3, generator=seeded(1))
    function = getattr(torch.nn.functional, activation)
    first, second = mlp.layers
    expected = function(function(x @ first.weight.t() + first.bias) @ second.weight.t() + second.bias)
    torch.testing.assert_close(mlp(x), expected)
    out = Readout(4, 2, 0.01, seeded(2))
    torch.testing.assert_close(out(mlp(x)), (expected @ out.weight.t()).t())


def test_weights_are_orthogonal_and_of_the_seed():
    mlp = MLP(16, (8,), "tanh", seeded(3))
    weight = mlp.layers[0].weight
    torch.testing.assert_close(weight @ weight.t(), 2 * torch.eye(8))
    assert torch.equal(weight, MLP(16, (8,), "tanh", seeded(3)).layers[0].weight)
    assert not torch.equal(weight, MLP(16, (8,), "tanh", seeded(4)).layers[0].weight)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"unknown activation 'tan'.*tanh"):
        MLP(2, (4,), "tan", seeded())
    with pytest.raises(ValueError, match=r"got \(4, 0\)"):
        MLP(2, (4, 0), "tanh", seeded())
    with pytest.raises(TypeError, match="no network for observations of"):
        make_encoder(Text(5), False, seeded())


def test_discrete_observations_become_one_hot():
    encoder = make_encoder(Discrete(3, start=5), normalize=True, generator=seeded())
    assert encoder(torch.tensor([5, 7], dtype=torch.int32)).tolist() == [[1, 0, 0], [0, 0, 1]]
    encoder = make_encoder(MultiDiscrete([2, 3]), normalize=False, generator=seeded())
    assert encoder(torch.tensor([[1, 0], [0, 2]], dtype=torch.int32)).tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]


def test_dict_observations_lie_one_after_another():
    space = Dict({"place": Box(-1, 1, (2,)), "grid": Box(-1, 1, (2, 2)), "mode": Discrete(2)})
    encoder = make_encoder(space, normalize=True, generator=seeded())
    observation = Group(
        {
            "place": torch.tensor([[1.0, 2.0]]),
            "grid": torch.tensor([[[3.0, 4.0], [5.0, 6.0]]]),
            "mode": torch.tensor([1], dtype=torch.int32),
        }
    )
    by_name = {"grid": [3, 4, 5, 6], "mode": [0, 1], "place": [1, 2]}
    assert encoder.size == 8
    assert encoder(observation).tolist() == [[x for name in space for x in by_name[name]]]
    encoder.update_statistics(observation, torch.tensor([True]))
    assert [m.normalizer.statistics.count.item() for m in encoder.members if hasattr(m, "normalizer")] == [1, 1]


@pytest.mark.parametrize("activation", ["tanh", "gelu"])
def test_layer_norm_goes_before_the_activation(activation):
    mlp, x = MLP(3, (5, 4), activation, seeded(), layer_norm=True), torch.randn(7, 3, generator=seeded(1))
    with torch.no_grad():
        for norm in mlp.norms:
            norm.weight.normal_(generator=seeded(2))
            norm.bias.normal_(generator=seeded(3))
    function, expected = getattr(torch.nn.functional, activation), x
    for layer, norm in zip(mlp.layers, mlp.norms, strict=True):
        z = expected @ layer.weight.t() + layer.bias
        z = (z - z.mean(1, keepdim=True)) / (z.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        expected = function(z * norm.weight + norm.bias)
    torch.testing.assert_close(mlp(x), expected)
    assert "norms.0.weight" in mlp.state_dict()
    assert list(MLP(3, (5, 4), activation, seeded()).state_dict()) == [
        f"layers.{i}.{name}" for i in range(2) for name in ("weight", "bias")
    ]
