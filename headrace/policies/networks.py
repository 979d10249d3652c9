"""Multi-layer perceptrons, and encoders from observations to vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import pairwise, zip_longest
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.data.flat_dict import ACTION_MASK, FlatDict
from headrace.data.spaces import (
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    Tuple,
    is_image,
    members,
    observation_column,
)
from headrace.kernels.nn import activation_table
from headrace.policies.convolutions import ImageEncoder
from headrace.policies.distributions import box_muller
from headrace.policies.normalization import BatchRenorm, ObservationNormalizer, update_encoder
from headrace.policies.unknown_members import explains_members

ACTIVATIONS = activation_table.FUNCTIONS  # name -> function, in place where the gradient needs the output only
# for each layer in order: standard deviations [outputs, inputs], [outputs], and noise f [inputs, N], [outputs, N]
LayerNoise: TypeAlias = Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]


@explains_members
class Dense(nn.Module):
    """A linear layer: orthogonal weight [outputs, inputs] times gain (Saxe et al. 2014), bias 0."""

    def __init__(self, inputs: int, outputs: int, gain: float, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.orthogonal_(torch.empty(outputs, inputs), gain, generator))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, features: Tensor) -> Tensor:
        return functional.linear(features, self.weight, self.bias)


def _linear(layer: Any, features: Tensor) -> Tensor:
    """Compute layer(features). Calling a module, and each access to its parameters, takes as long as a small operation,
    so both are avoided for a Dense layer without additions."""
    own, parameters = layer.__dict__, layer._parameters
    hooked = own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"]
    if type(layer) is not Dense or len(parameters) != 2 or hooked or "forward" in own:
        return layer(features)  # type: ignore[no-any-return]
    return functional.linear(features, parameters["weight"], parameters["bias"])


# before an activation: Ba et al. 2016, arXiv:1607.06450; Zhang & Sennrich 2019, arXiv:1910.07467
NORMS: dict[str, Callable[[int], nn.Module]] = {"layer": nn.LayerNorm, "rms": partial(nn.RMSNorm, eps=1e-5)}


@explains_members
class MLP(nn.Module):
    """Hidden layers with an activation, gain sqrt 2: [N, inputs] -> [N, hidden[-1]]. The identity without any.

    layer_norm: layer normalisation before each activation. norm: this, or another of NORMS.
    Raises ValueError for an unknown activation or a size below 1.
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        activation: str,
        generator: torch.Generator,
        layer_norm: bool = False,
        norm: str = "none",
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"unknown activation {activation!r}: use one of {', '.join(ACTIVATIONS)}")
        if any(size < 1 for size in hidden):
            raise ValueError(f"hidden sizes must be 1 or more, got {tuple(hidden)}")
        sizes = [inputs, *hidden]
        self.outputs = sizes[-1]
        self.layers = nn.ModuleList(Dense(a, b, math.sqrt(2), generator) for a, b in pairwise(sizes))
        normalized = NORMS.get("layer" if layer_norm else norm)
        self.norms = nn.ModuleList(normalized(size) for size in hidden if normalized is not None)
        self.activation, self._activate = activation, ACTIVATIONS[activation]

    def forward(self, features: Tensor) -> Tensor:
        parts: Any = self._modules
        for layer, norm in zip_longest(parts["layers"]._modules.values(), parts["norms"]._modules.values()):
            sums = _linear(layer, features)
            features = self._activate(sums if norm is None else norm(sums))
        return features


class RenormMLP(MLP):
    """Hidden layers as an MLP's, with batch renormalisation of the input and after each activation, as in CrossQ
    (Bhatt et al. 2024, arXiv:1902.05605). warm_up: see BatchRenorm."""

    def __init__(
        self, inputs: int, hidden: Sequence[int], activation: str, generator: torch.Generator, warm_up: int
    ) -> None:
        super().__init__(inputs, hidden, activation, generator)
        self.norms = nn.ModuleList(BatchRenorm((size,), warm_up) for size in (inputs, *hidden))

    def forward(self, features: Tensor, weight: Tensor | None = None) -> Tensor:
        """weight: of the rows [N], to learn from them; None to normalise by the running moments."""
        first, *norms = self.norms
        features = first(features, weight)
        for layer, norm in zip(self.layers, norms, strict=True):
            features = norm(self._activate(layer(features)), weight)
        return features


class Readout(Dense):
    """The last layer, feature-first: [N, inputs] -> [outputs, N]; a reduction over few outputs is then fast."""

    def forward(self, features: Tensor) -> Tensor:
        return torch.addmm(self.bias.unsqueeze(1), self.weight, features.t())


def read_out(layer: Any, features: Tensor, outputs: int, name: str) -> Tensor:
    """The result of a policy's last layer for features [N, F]: [outputs, N], or [outputs, M, N] of M quantiles.

    name: of the attribute of the policy. Raises ValueError for a layer of a user's own that returns another shape.
    """
    found: Tensor = layer(features)
    if (found.shape[0], found.shape[-1]) != (outputs, len(features)):
        hint = f"{outputs} rows, one for each output, and a column for each row of features"
        hint += "; transpose it, as by .t()" * (found.shape == (len(features), outputs))
        raise ValueError(
            f"{name} is a {type(layer).__name__} that returns {[*found.shape]} for features {[*features.shape]}: "
            f"it has to return {hint}"
        )
    return found


def initialize_as_torch(module: nn.Module, generator: torch.Generator) -> None:
    """Give layers the initial weights of torch.nn.Linear and torch.nn.Conv2d: uniform, up to 1 / sqrt(inputs)."""
    for layer in module.modules():
        if isinstance(layer, Dense | nn.Linear | nn.Conv2d):
            limit = layer.weight[0].numel() ** -0.5
            for parameter in layer.parameters():
                nn.init.uniform_(parameter, -limit, limit, generator)


@explains_members
class QuantileReadout(nn.Module):
    """A last layer of `quantiles` numbers for each output: [N, inputs] -> their means, [outputs, N]."""

    def __init__(self, inputs: int, outputs: int, quantiles: int, gain: float, generator: torch.Generator) -> None:
        super().__init__()
        self.of_all, self.number = Readout(inputs, outputs * quantiles, gain, generator), quantiles

    def quantiles(self, features: Tensor) -> Tensor:
        """The quantiles, [outputs, quantiles, N]."""
        return self.of_all(features).unflatten(0, (-1, self.number))

    def forward(self, features: Tensor) -> Tensor:
        return self.quantiles(features).mean(1)

    @property
    def weight(self) -> Tensor:
        """The weight of the means, [outputs, inputs]: they are linear."""
        return self.of_all.weight.unflatten(0, (-1, self.number)).mean(1)

    @property
    def bias(self) -> Tensor:
        """The bias of the means, [outputs]."""
        return self.of_all.bias.unflatten(0, (-1, self.number)).mean(1)


@explains_members
class WeightNoise(nn.Module):
    """Learned standard deviations of the weights of linear layers: noisy networks, Fortunato et al. 2018,
    arXiv:1706.10295.

    They start at `scale` / sqrt(inputs) of a layer. The layers themselves have the means. Noise is factorised (eq. 10
    and 11): the noise of a weight is f(e) of its input times f(e) of its output, where e are p + q standard normals for
    a layer with p inputs and q outputs. Each row has its own noise.
    """

    def __init__(self, layers: Sequence[Dense], scale: float) -> None:
        super().__init__()
        starts = [scale / math.sqrt(layer.weight.shape[1]) for layer in layers]
        self.weights = nn.ParameterList(torch.full_like(x.weight, s) for x, s in zip(layers, starts, strict=True))
        self.biases = nn.ParameterList(torch.full_like(x.bias, s) for x, s in zip(layers, starts, strict=True))
        normals = sum(sum(weight.shape) for weight in self.weights)
        self.num_draws = normals + normals % 2

    def draw(self, random: Tensor) -> LayerNoise:
        """Noise for N rows, from uniform draws [N, num_draws]: f(e) = sign(e) sqrt(abs(e))."""
        normal = box_muller(random.t(), self.num_draws)
        noise, first = normal.sign() * normal.abs().sqrt(), 0
        for weight, bias in zip(self.weights, self.biases, strict=True):
            outputs, inputs = weight.shape
            yield weight, bias, noise[first : first + inputs], noise[first + inputs : first + inputs + outputs]
            first += inputs + outputs


def noisy_mlp(mlp: MLP, features: Tensor, noise: LayerNoise) -> Tensor:
    """mlp(features) with noise on its weights, [N, outputs]."""
    for layer, norm in zip_longest(mlp.layers, mlp.norms):
        weight, bias, of_inputs, of_outputs = next(noise)
        sums = layer(features) + of_outputs.t() * functional.linear(features * of_inputs.t(), weight, bias)
        features = mlp._activate(sums if norm is None else norm(sums))
    return features


def noisy_readout(readout: Dense, features: Tensor, noise: LayerNoise) -> Tensor:
    """readout(features) with noise on its weights, [outputs, N]."""
    weight, bias, of_inputs, of_outputs = next(noise)
    return readout(features) + of_outputs * torch.addmm(bias.unsqueeze(1), weight, (features * of_inputs.t()).t())


@explains_members
class VectorEncoder(nn.Module):
    """A Box of floats, flattened, optionally normalised: [N, *shape] -> [N, size]. Of a FlatDict without its mask."""

    def __init__(self, space: Box, normalize: bool) -> None:
        super().__init__()
        self.size = space.features if isinstance(space, FlatDict) else math.prod(space.shape)
        self.skipped = math.prod(space.shape) - self.size  # entries of the action mask, which come last
        self.normalizer = ObservationNormalizer(self.size) if normalize else None

    def forward(self, observation: Tensor) -> Tensor:
        if observation.dim() != 2:
            observation = observation.reshape(observation.shape[0], self.size)
        if self.skipped:
            observation = observation[:, : self.size]
        return observation if self.normalizer is None else self.normalizer(observation)

    def update_statistics(self, observation: Tensor, valid: Tensor) -> None:
        """Update the normaliser with the valid ones of observations [R, *shape]."""
        if self.normalizer is not None:
            self.normalizer.update(observation.reshape(len(observation), -1)[:, : self.size], valid)


@explains_members
class OneHotEncoder(nn.Module):
    """Discrete or MultiDiscrete: one-hot vectors, [N] or [N, K] -> [N, sum of choices]."""

    component: Tensor
    choice: Tensor

    def __init__(self, space: Discrete | MultiDiscrete) -> None:
        super().__init__()
        if isinstance(space, Discrete):
            sizes, starts = [int(space.n)], [int(space.start)]
        else:
            sizes, starts = space.nvec.ravel().tolist(), space.start.ravel().tolist()
        component = [k for k, size in enumerate(sizes) for _ in range(size)]
        choice = [start + i for size, start in zip(sizes, starts, strict=True) for i in range(size)]
        self.size = sum(sizes)
        self.register_buffer("component", torch.tensor(component), persistent=False)
        self.register_buffer("choice", torch.tensor(choice, dtype=torch.int32), persistent=False)

    def forward(self, observation: Tensor) -> Tensor:
        columns = observation.reshape(observation.shape[0], -1).index_select(1, self.component)
        return (columns == self.choice).to(torch.float32)

    def update_statistics(self, observation: Tensor, valid: Tensor) -> None:
        """Do nothing: zeros and ones are not normalised."""


@explains_members
class BinaryEncoder(nn.Module):
    """MultiBinary, flattened: zeros and ones, [N, *shape] -> [N, size]."""

    def __init__(self, space: MultiBinary) -> None:
        super().__init__()
        self.size = math.prod(space.shape)

    def forward(self, observation: Tensor) -> Tensor:
        return observation.reshape(observation.shape[0], self.size).to(torch.float32)

    def update_statistics(self, observation: Tensor, valid: Tensor) -> None:
        """Do nothing: zeros and ones are not normalised."""


@explains_members
class DictEncoder(nn.Module):
    """A Dict or a Tuple: concatenates the vectors of its members, without an action mask."""

    def __init__(self, space: Dict | Tuple, normalize: bool, generator: torch.Generator, images: str) -> None:
        super().__init__()
        seen = [(name, member) for name, _, member in members(space) if name != ACTION_MASK]
        named = {name: make_encoder(member, normalize, generator, images) for name, member in seen}
        self.names = list(named)
        self.members: Any = nn.ModuleList(named.values())
        self.size = sum(encoder.size for encoder in named.values())

    def forward(self, observation: Any) -> Tensor:
        parts = [member(getattr(observation, name)) for name, member in zip(self.names, self.members, strict=True)]
        return torch.cat(parts, 1)

    def update_statistics(self, observation: Any, valid: Tensor) -> None:
        """Update the members' normalisers with the valid ones of R observations."""
        for name, member in zip(self.names, self.members, strict=True):
            update_encoder(member, getattr(observation, name), valid)


_other: ContextVar[Callable[[Space, torch.Generator], Any] | None] = ContextVar("other", default=None)


@contextmanager
def encoders_by(make: Callable[[Space, torch.Generator], Any]) -> Iterator[None]:
    """Let make_encoder() return, within this block, the result of this function, a module with a `size`."""
    token = _other.set(make)
    try:
        yield
    finally:
        _other.reset(token)


def make_encoder(space: Space, normalize: bool, generator: torch.Generator, images: str = "auto") -> Any:
    """The encoder of an observation space: N observations -> float32 [N, encoder.size].

    normalize: normalise each dimension of every Box of floats to mean 0 and variance 1. generator: for initial weights.
    images: the network for Boxes of uint8 with two dimensions or more; see convolutions.ImageEncoder.
    Raises TypeError for other spaces.
    """
    if (other := _other.get()) is not None:
        return other(space, generator)
    if isinstance(space, Dict | Tuple):
        return DictEncoder(space, normalize, generator, images)
    if isinstance(space, Discrete | MultiDiscrete):
        return OneHotEncoder(space)
    if isinstance(space, MultiBinary):
        return BinaryEncoder(space)
    if is_image(space):
        return ImageEncoder(space, images, generator)
    if isinstance(space, Box):
        observation_column(space)  # refuses an empty one
        return VectorEncoder(space, normalize)
    raise TypeError(
        f"no network for observations of {space} yet: use a Box (vectors, images), Discrete, MultiDiscrete, "
        "MultiBinary, or a Dict or Tuple of these"
    )
