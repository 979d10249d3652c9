"""hr.compile() of convolutions and pooling: the gradients of float64, or a refusal with file and line."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headrace as hr
from headrace.core.fused import plain_only
from headrace.kernels.rows.tracing import windows
from tests.bindings.oracle import as_in_float64


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Fixed(nn.Module):
    """A function that has no parameters."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def _pooled(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, 2, 1) + F.avg_pool2d(x, 3, 2, 1) * F.adaptive_avg_pool2d(x, 4).sin()


# each: the shape of a row, and layers that end with a convolution, or with a linear layer
NETWORKS: dict[str, tuple[tuple[int, ...], Callable[[], list[nn.Module]]]] = {
    "strides and padding": ((3, 11, 9), lambda: [nn.Conv2d(3, 4, 3, 2, 1), nn.Tanh(), nn.Conv2d(4, 5, (2, 3), (1, 2))]),
    "strides longer than the kernel": ((2, 9, 12), lambda: [nn.Conv2d(2, 3, 1), nn.GELU(), nn.Conv2d(3, 4, 2, 3, 1)]),
    "dilation": ((2, 9, 10), lambda: [nn.Conv2d(2, 3, 3, 1, 2, 2), nn.ELU(), nn.Conv2d(3, 4, 2, 2, 1, 3)]),
    "groups": ((4, 6, 5), lambda: [nn.Conv2d(4, 6, 3, padding=1, groups=2), nn.SiLU(), nn.Conv2d(6, 6, 3, groups=6)]),
    "one dimension": ((6, 27), lambda: [nn.Conv1d(6, 8, 5, 2), nn.ELU(), nn.MaxPool1d(2), nn.Conv1d(8, 4, 3)]),
    "three dimensions": ((2, 4, 5, 4), lambda: [nn.Conv3d(2, 3, 2), nn.ReLU(), nn.Conv3d(3, 2, 2, 2)]),
    "transposed": (
        (2, 5, 6),
        lambda: [nn.Conv2d(2, 4, 3), nn.ELU(), nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), nn.Conv2d(6, 2, 3)],
    ),
    "pooling": ((2, 8, 8), lambda: [nn.Conv2d(2, 4, 3, padding=1), Fixed(_pooled), nn.Conv2d(4, 3, 2)]),
    "pooling with equal numbers": (
        (1, 8, 8),
        lambda: [nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d((2, 3), (1, 2), dilation=(2, 1)), nn.Conv2d(3, 2, 2)],
    ),
    "residual, with norms": (
        (3, 6, 6),
        lambda: [
            *(nn.Conv2d(3, 4, 3, padding="same"), nn.BatchNorm2d(4), nn.ReLU(inplace=True)),
            *(Residual(nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU())),),
            *(nn.Flatten(), nn.Linear(144, 2)),
        ],
    ),
    "other padding": (
        (2, 6, 5),
        lambda: [nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), nn.ConstantPad2d((1, -1, 2, 0), 0.5)],
    ),
    "an image as large as its kernel": ((2, 4, 4), lambda: [nn.Conv2d(2, 3, 4), nn.Flatten(), nn.Linear(3, 2)]),
}


def batch(shape: tuple[int, ...], rows: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    return {"x": torch.randn(rows, *shape, generator=generator)}


def weighted(net: nn.Module, b: dict[str, Tensor]) -> Tensor:
    found = net(b["x"]).flatten(1)
    return (
        (found * torch.arange(1, found.shape[1] + 1, dtype=found.dtype) / found.shape[1]).sin().sum(1).square().mean()
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_those_of_float64(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    shape, layers = NETWORKS[name]
    as_in_float64(weighted, nn.Sequential(*layers()), [batch(shape, rows) for rows in (64, 37, 150)], monkeypatch, 5e-5)


VIEWED = {
    "convolution": ((2, 6, 6), lambda: [nn.Conv2d(2, 3, 3)]),
    "in groups": ((2, 6, 6), lambda: [nn.Conv2d(2, 4, 3, groups=2)]),
    "transposed": ((2, 3, 3), lambda: [nn.ConvTranspose2d(2, 3, 2, 2)]),
    "of one dimension": ((2, 9), lambda: [nn.Conv1d(2, 3, 3)]),
    "largest": ((2, 6, 6), lambda: [nn.Conv2d(2, 3, 3), nn.MaxPool2d(2)]),
    "average": ((2, 6, 6), lambda: [nn.Conv2d(2, 3, 3), nn.AvgPool2d(2)]),
    "average of all": ((2, 6, 6), lambda: [nn.Conv2d(2, 3, 3), nn.AdaptiveAvgPool2d(2)]),
}


@pytest.mark.parametrize("name", VIEWED)
def test_results_lie_in_memory_as_torchs(name: str) -> None:
    def loss(net: nn.Module, b: dict[str, Tensor]) -> Tensor:
        return net(b["x"]).view(len(b["x"]), -1).square().sum(1).mean()  # type: ignore[no-any-return]

    shape, layers = VIEWED[name]
    assert hr.compile(loss).why_not(nn.Sequential(*layers()), batch(shape, 20)) is None


class Images(nn.Module):
    """uint8 images, channels last, to the values of three actions."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(inplace=True), nn.Conv2d(6, 4, 3, 2), nn.ReLU())
        self.out = nn.Linear(36, 3)

    def forward(self, x: Tensor) -> Tensor:
        pixels = x.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last) / 255
        return self.out(self.convolutions(pixels.to(self.out.weight.dtype)).flatten(1))


def transitions(rows: int) -> dict[str, Tensor]:
    images = torch.randint(256, (2, rows, 9, 9, 2), dtype=torch.uint8)
    action, reward = torch.randint(3, (rows,)), torch.randn(rows)
    return {"observation": images[0], "following": images[1], "action": action, "reward": reward}


def test_targets_and_frozen_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)

    def dqn(networks: nn.ModuleList, b: dict[str, Tensor]) -> Tensor:
        own, target = networks
        with torch.no_grad():
            wanted = b["reward"] + 0.9 * target(b["following"]).amax(1)
        value = own(b["observation"]).gather(1, b["action"].unsqueeze(1)).squeeze(1)
        return F.smooth_l1_loss(value, wanted)

    networks = nn.ModuleList((Images(), Images()))
    networks[1].requires_grad_(False)
    networks[0].convolutions[0].weight.requires_grad_(False)
    as_in_float64(dqn, networks, [transitions(rows) for rows in (64, 37, 150)], monkeypatch)


def test_windows_of_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensor.unfold(), which makes no copy."""
    torch.manual_seed(0)

    def loss(net: nn.Module, b: dict[str, Tensor]) -> Tensor:
        windows = net(b["x"]).unfold(1, 4, 3)
        return (windows[:, :, :2] * windows[:, :, 2:]).tanh().sum(1).square().mean()

    as_in_float64(loss, nn.Linear(5, 13), [batch((5,), rows) for rows in (64, 37)], monkeypatch)


def test_images_of_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row has several images. A convolution makes rows of them."""
    torch.manual_seed(0)

    def loss(net: nn.Module, b: dict[str, Tensor]) -> Tensor:
        each = net(b["x"].flatten(0, 1)).flatten(1).unflatten(0, b["x"].shape[:2])
        return (each.tanh().mean(1) * each.amax(1)).sum(1).square().mean()

    net = nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 2, 2))
    as_in_float64(loss, net, [batch((3, 2, 6, 6), rows) for rows in (64, 37)], monkeypatch)


def refusal(net: nn.Module, x: Tensor) -> str:
    """Reason why a loss of a network is not compiled."""

    def loss(net: nn.Module, b: dict[str, Tensor]) -> Tensor:
        return net(b["x"]).float().square().mean()

    return hr.compile(loss).why_not(net, {"x": x}) or ""


def test_large_images_are_refused() -> None:
    own = Fixed(lambda x: x)
    places = (windows.MOST // 9) // 13 + 3  # windows of 3 x 3 of 15 rows of pixels
    assert not refusal(nn.Conv2d(1, 2, 3), torch.rand(4, 1, 15, places - 1))
    why = refusal(nn.Sequential(own, nn.Conv2d(1, 2, 3)), torch.rand(4, 1, 15, places))
    assert why.startswith("test_losses_with_convolutions.py:")
    assert "up to 16,384 are compiled" in why
    assert "While executing" not in why
    assert "are compiled" in refusal(nn.ConvTranspose2d(4, 4, 8, 4), torch.rand(4, 4, 9, 9))


@pytest.mark.parametrize(
    ("layer", "part"),
    [
        (nn.MaxPool2d(3, 2, ceil_mode=True), "ceil_mode"),
        (nn.AvgPool2d(3, 2, 1, count_include_pad=False), "count_include_pad"),
        (nn.AdaptiveAvgPool2d(3), "does not divide"),
        (Fixed(lambda x: x.unfold(0, 2, 1)), "windows of rows"),
    ],
)
def test_other_pooling_is_refused(layer: nn.Module, part: str) -> None:
    why = refusal(nn.Sequential(nn.Conv2d(1, 1, 1), layer), torch.rand(6, 1, 8, 8))
    assert part in why
    assert why.startswith("test_losses_with_convolutions.py:")


def test_arithmetic_of_bytes_is_refused() -> None:
    """Arithmetic of uint8 wraps around at 256."""
    x = torch.randint(256, (6, 1, 8, 8), dtype=torch.uint8)
    net = nn.Conv2d(1, 1, 3)
    assert not refusal(nn.Sequential(Fixed(lambda x: x[:, :, 1:].float() + (x[:, :, 1:] > 7)), net), x)
    assert "computes in uint8" in refusal(nn.Sequential(Fixed(lambda x: (x + 1).float()), net), x)
    assert "as another dtype" in refusal(nn.Sequential(Fixed(lambda x: x.view(torch.bool).float()), net), x)


class Policy(hr.ActorCritic):
    """Headrace's own, as a class of a user's."""


class Values(hr.QNetwork):
    """Headrace's own, as a class of a user's."""


@pytest.mark.parametrize(("algorithm", "policy"), [("ppo", Policy), ("a2c", None), ("dqn", Values)])
def test_trainings_on_images(algorithm: str, policy: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """Collected and learned by compiled calls, along gradients that are plain PyTorch's within rounding."""
    settings: dict[str, Any] = {"num_envs": 8, "num_steps": 8, "policy": policy, "seed": 1, "registered": False}
    settings |= {"ppo": {"minibatch_size": 64, "epochs": 1}}.get(algorithm, {})
    if algorithm == "dqn":
        settings |= {"num_envs": 1, "learning_starts": 32, "train_freq": 4, "batch_size": 16}
    found = []
    for plain in (False, True):
        made = hr.Trainer(algorithm, "headrace/PixelCatch", precision="float32", total_steps=10**6, **settings)
        with plain_only(plain), closing(made) as trainer:
            for _ in range(5 if algorithm == "dqn" else 1):
                trainer.iterate()
            found.append(trainer.algorithm.optimizer.mean.clone())
    assert "plain PyTorch" not in capfd.readouterr().err
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-3 * float(found[1].abs().max()))
    assert not torch.equal(*found), "it was not compiled"
