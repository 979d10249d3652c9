"""features_extractor_class and features_extractor_kwargs: use a module with Stable-Baselines3's interface as a policy's
encoder. It may be the user's or one of the two usual ones there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space, flatdim
from torch import Tensor, nn

from headrace.data.flat_dict import FlatDict
from headrace.data.spaces import is_image
from headrace.policies.convolutions import channels_first
from headrace.policies.networks import encoders_by
from headrace.sb3.translation import ON_POLICY

Made = TypeVar("Made")


class BaseFeaturesExtractor(nn.Module):
    """The base class of extractors, as in Stable-Baselines3. forward() returns features [N, features_dim]."""

    def __init__(self, observation_space: Space, features_dim: int = 0) -> None:
        super().__init__()
        if features_dim <= 0:
            raise ValueError(f"features_dim must be 1 or more, got {features_dim}")
        self._observation_space, self._features_dim = observation_space, features_dim

    @property
    def features_dim(self) -> int:
        """Number of features."""
        return self._features_dim


class NatureCNN(BaseFeaturesExtractor):
    """The convolutions of Mnih et al. 2015 and a layer of features_dim units, for images in 0..1, channels first."""

    def __init__(self, observation_space: Space, features_dim: int = 512, normalized_image: bool = False) -> None:
        super().__init__(observation_space, features_dim)
        layers, channels = list[nn.Module](), observation_space.shape[0]  # type: ignore[index]
        for outputs, size, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            layers += [nn.Conv2d(channels, outputs, size, stride), nn.ReLU()]
            channels = outputs
        self.cnn = nn.Sequential(*layers, nn.Flatten())
        with torch.no_grad():
            inputs = self.cnn(torch.zeros(1, *observation_space.shape)).shape[1]  # type: ignore[misc]
        self.linear = nn.Sequential(nn.Linear(inputs, features_dim), nn.ReLU())

    def forward(self, observations: Tensor) -> Tensor:
        """Features [N, features_dim]."""
        features: Tensor = self.linear(self.cnn(observations))
        return features


class CombinedExtractor(BaseFeaturesExtractor):
    """Concatenate features of a Dict's members: NatureCNN's for an image, the numbers themselves for others."""

    def __init__(self, observation_space: Dict, cnn_output_dim: int = 256, normalized_image: bool = False) -> None:
        parts: dict[str, nn.Module] = {
            name: NatureCNN(space, cnn_output_dim) if is_image(space) else nn.Flatten()
            for name, space in observation_space.items()
        }
        sizes = (cnn_output_dim if is_image(space) else flatdim(space) for space in observation_space.values())
        super().__init__(observation_space, sum(sizes))
        self.extractors = nn.ModuleDict(parts)

    def forward(self, observations: Mapping[str, Tensor]) -> Tensor:
        """Features [N, features_dim]."""
        return torch.cat([part(observations[name]) for name, part in self.extractors.items()], 1)


USUAL = {"CnnPolicy": NatureCNN, "MultiInputPolicy": CombinedExtractor}


class Extractor(nn.Module):
    """An encoder that computes features with an extractor. The actor and the critics share it.

    kind, kwargs: the extractor's class, and policy_kwargs with features_extractor_kwargs and normalize_images.
    generator: for its initial weights. orthogonal: whether they are orthogonal, with gain sqrt 2, as PPO's are there.
    Raises TypeError for a class that is not a module with features_dim.
    """

    def __init__(
        self, space: Space, kind: Any, kwargs: Mapping[str, Any], generator: torch.Generator, orthogonal: bool
    ) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
            made: Any = kind(_given(space), **(kwargs.get("features_extractor_kwargs") or {}))
            if not isinstance(made, nn.Module) or not hasattr(made, "features_dim"):
                raise TypeError(
                    f"features_extractor_class={kind!r} is no module with features_dim, the number of features"
                )
            self.space, self.pixels = space, 1 / 255 if kwargs.get("normalize_images", True) else 1.0
            size: Any = made.features_dim
            self.extractor, self.size = made, int(size)
            self._check()
        for module in self.modules() if orthogonal else ():
            if isinstance(module, nn.Linear | nn.Conv2d):
                nn.init.orthogonal_(module.weight, math.sqrt(2), generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, observation: Any) -> Tensor:
        """Features [N, size] of N observations."""
        features: Tensor = self.extractor(self._seen(self.space, observation))
        return features

    @torch.no_grad()
    def _check(self) -> None:
        """Compute the features of two observations. Raises ValueError for others than [2, size], and for a key that no
        observation has; another error has a note."""
        seen = self._seen(self.space, _zeros(self.space, 2))
        named, modes = type(self.extractor).__name__, {part: part.training for part in self.extractor.modules()}
        self.extractor.eval()  # running statistics stay as they are
        try:
            features = self.extractor(seen)
        except Exception as error:
            form = {key: [*x.shape] for key, x in seen.items()} if isinstance(seen, dict) else [*seen.shape]
            if isinstance(error, KeyError) and isinstance(seen, dict) and error.args[0] not in seen:
                text = f"{named} reads observations[{error.args[0]!r}], and observations have {', '.join(seen)}"
                raise ValueError(text) from error
            error.add_note(f"features_extractor_class: {named} was tried with two observations, {form}")
            raise
        for part, training in modes.items():
            part.training = training
        shape = [*getattr(features, "shape", ())]
        if shape != [2, self.size]:
            raise ValueError(
                f"{named} has features_dim={self.size}, and its features of two observations are {shape}, not "
                f"{[2, self.size]}: give super().__init__(observation_space, features_dim) the number of columns of "
                "what forward() returns"
            )

    def _seen(self, space: Space, observation: Any) -> Any:
        """Convert observations to Stable-Baselines3's form: floats, images with channels first, one-hot numbers."""
        if isinstance(space, FlatDict):
            parts = space.split(observation)
            return {name: part.reshape(-1, *(space.members[name].shape or ())) for name, part in parts.items()}
        if isinstance(space, Dict):
            return {name: self._seen(member, observation[name]) for name, member in space.items()}
        if is_image(space):
            in_front = channels_first(space.shape)[0]
            return (observation if in_front else observation.permute(0, 3, 1, 2)).to(torch.float32) * self.pixels
        if isinstance(space, Discrete):
            return _one_hot(observation, int(space.n), int(space.start))
        if isinstance(space, MultiDiscrete):
            numbers = zip(observation.t(), space.nvec.tolist(), space.start.tolist(), strict=True)
            return torch.cat([_one_hot(*each) for each in numbers], 1)
        return observation.to(torch.float32).reshape(-1, *(space.shape or ()))


def _one_hot(observation: Tensor, size: int, start: int) -> Tensor:
    """One-hot numbers [N, size] of choices that are counted from `start`. Zeros fill blocks, and need not be one."""
    choice = (observation.long() - start).clamp(0, size - 1)
    return nn.functional.one_hot(choice, size).to(torch.float32)


def _zeros(space: Space, rows: int) -> Any:
    """Observations as act() takes them."""
    if isinstance(space, Dict):
        return {name: _zeros(member, rows) for name, member in space.items()}
    return torch.zeros(rows, *(space.shape or ()))


def _given(space: Space) -> Space:
    """The space to make an extractor for."""
    if isinstance(space, FlatDict | Dict):
        members = space.members if isinstance(space, FlatDict) else space.spaces
        return Dict({name: _given(member) for name, member in members.items()})
    if is_image(space) and len(space.shape) == 3:
        return Box(0, 255, channels_first(space.shape)[1], np.uint8)
    return space


def extracted(model: Any, make: Callable[..., Made], *args: Any, **options: Any) -> Made:
    """Call a function with these arguments. Policies that it makes have the extractor of a model's policy_kwargs."""
    kwargs = model.arguments.get("policy_kwargs") or {}
    kind = kwargs.get("features_extractor_class")
    if kind is None and kwargs.get("features_extractor_kwargs"):
        kind = USUAL.get(getattr(model.policy_argument, "__name__", model.policy_argument))
    if kind is None:
        return make(*args, **options)
    orthogonal = model.algorithm_name in ON_POLICY and kwargs.get("ortho_init", True)
    with encoders_by(lambda space, generator: Extractor(space, kind, kwargs, generator, orthogonal)):
        return make(*args, **options)
