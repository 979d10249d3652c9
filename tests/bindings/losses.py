"""Losses as users write them, with networks of their own: each gives (loss, arguments) for so many rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Beta, Categorical, Independent, Normal

Made = tuple[Callable[..., Any], tuple[Any, ...]]


def mlp(*sizes: int, act: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        layers += [nn.Linear(inputs, outputs), act()] if i < len(sizes) - 2 else [nn.Linear(inputs, outputs)]
    return nn.Sequential(*layers)


class Agent(nn.Module):
    def __init__(self, inputs: int, outputs: int, body: Callable[[int, int], nn.Module] | None = None) -> None:
        super().__init__()
        made = body or (lambda i, o: mlp(i, 32, 32, o))
        self.actor, self.critic = made(inputs, outputs), made(inputs, 1)
        self.log_std = nn.Parameter(torch.zeros(outputs))


@dataclass(frozen=True)
class Settings:
    clip: float = 0.2
    value_coef: float = 0.5
    entropy_coef: float = 0.01
    normalize: bool = False


def rollout(rows: int, obs: int, action: Tensor) -> dict[str, Tensor]:
    scalars = {name: torch.randn(rows) for name in ("advantage", "returns")}
    return {"obs": torch.randn(rows, obs), "action": action, "log_prob": -torch.rand(rows) - 0.3, **scalars}


def surrogate(log_prob: Tensor, batch: dict[str, Tensor], settings: Settings) -> Tensor:
    advantage = batch["advantage"]
    if settings.normalize:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = (log_prob - batch["log_prob"]).exp()
    clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
    return -torch.min(ratio * advantage, clipped * advantage).mean()


def ppo_categorical(rows: int) -> Made:
    def loss(agent: Agent, batch: dict[str, Tensor], settings: Settings) -> tuple[Tensor, dict[str, Tensor]]:
        policy = Categorical(logits=agent.actor(batch["obs"]))
        log_prob = policy.log_prob(batch["action"])
        actor_loss = surrogate(log_prob, batch, settings)
        value_loss = F.mse_loss(agent.critic(batch["obs"]).squeeze(-1), batch["returns"])
        entropy = policy.entropy().mean()
        total = actor_loss + settings.value_coef * value_loss - settings.entropy_coef * entropy
        return total, {"value_loss": value_loss, "entropy": entropy, "log_prob": log_prob}

    return loss, (Agent(4, 3), rollout(rows, 4, torch.randint(3, (rows,))), Settings(normalize=True))


def ppo_gaussian(rows: int) -> Made:
    def loss(agent: Agent, batch: dict[str, Tensor], clip: float) -> Tensor:
        policy = Independent(Normal(agent.actor(batch["obs"]), agent.log_std.exp()), 1)
        value = agent.critic(batch["obs"]).flatten()
        return (
            surrogate(policy.log_prob(batch["action"]), batch, Settings(clip))
            + (value - batch["returns"]).pow(2).mean()
        )

    return loss, (Agent(5, 2), rollout(rows, 5, torch.randn(rows, 2)), 0.3)


def ppo_beta(rows: int) -> Made:
    def loss(agent: Agent, batch: dict[str, Tensor]) -> Tensor:
        alpha, beta = (F.softplus(agent.actor(batch["obs"])) + 1).chunk(2, -1)
        policy = Beta(alpha, beta)
        log_prob = policy.log_prob(batch["action"]).sum(-1)  # which refuses others than those between 0 and 1
        return surrogate(log_prob, batch, Settings()) - 0.01 * policy.entropy().sum(-1).mean()

    return loss, (Agent(4, 4), rollout(rows, 4, torch.rand(rows, 2).clamp(0.01, 0.99)))


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 32), nn.Linear(32, outputs)
        self.inner = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 32))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(x + self.inner(x))


def ppo_residual(rows: int) -> Made:
    loss, (_, batch, settings) = ppo_categorical(rows)
    return loss, (Agent(4, 3, Block), batch, settings)


class Replay(NamedTuple):
    obs: Tensor
    action: Tensor
    next_obs: Tensor
    reward: Tensor
    discount: Tensor
    noise: Tensor


def replay(rows: int, obs: int = 6, actions: int = 2) -> Replay:
    action, noise = torch.rand(rows, actions) * 2 - 1, torch.randn(rows, actions)
    return Replay(torch.randn(rows, obs), action, torch.randn(rows, obs), torch.randn(rows), torch.rand(rows), noise)


def squashed(actor: nn.Module, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_std = actor(obs).chunk(2, -1)
    log_std = log_std.clamp(-5, 2)
    x = mean + log_std.exp() * noise
    log_prob = Normal(mean, log_std.exp()).log_prob(x) - 2 * (math.log(2) - x - F.softplus(-2 * x))
    return torch.tanh(x), log_prob.sum(-1)


def sac_critic(rows: int) -> Made:
    actor, critics, targets = mlp(6, 32, 4, act=nn.ReLU), [mlp(8, 32, 1, act=nn.ReLU) for _ in range(2)], []
    targets = [mlp(8, 32, 1, act=nn.ReLU) for _ in range(2)]

    def loss(critics: nn.ModuleList, targets: nn.ModuleList, batch: Replay, alpha: Tensor) -> Tensor:
        with torch.no_grad():
            action, log_prob = squashed(actor, batch.next_obs, batch.noise)
            x = torch.cat([batch.next_obs, action], -1)
            value = torch.min(*[target(x) for target in targets]).squeeze(-1)
            wanted = batch.reward + batch.discount * (value - alpha * log_prob)
        x = torch.cat([batch.obs, batch.action], -1)
        return sum(F.mse_loss(critic(x).squeeze(-1), wanted) for critic in critics)  # type: ignore[return-value]

    return loss, (nn.ModuleList(critics), nn.ModuleList(targets), replay(rows), torch.tensor(0.2))


def td3_actor(rows: int) -> Made:
    critic = mlp(8, 32, 1, act=nn.ELU)

    def loss(actor: nn.Module, batch: Replay) -> Tensor:
        return -critic(torch.cat([batch.obs, torch.tanh(actor(batch.obs))], 1)).mean()

    return loss, (mlp(6, 32, 2, act=nn.GELU), replay(rows))


def quantiles(rows: int) -> Made:
    tau = (torch.arange(5) + 0.5) / 5

    def loss(net: nn.Module, target: nn.Module, batch: Replay) -> Tensor:
        with torch.no_grad():
            wanted = torch.sort(target(batch.next_obs), -1)[0][:, :4]
            wanted = batch.reward[:, None] + batch.discount[:, None] * wanted
        difference = wanted[:, None, :] - net(batch.obs)[:, :, None]
        huber = torch.where(difference.abs() < 1, 0.5 * difference**2, difference.abs() - 0.5)
        return ((tau[None, :, None] - (difference < 0).float()).abs() * huber).mean()

    return loss, (mlp(6, 16, 5), mlp(6, 16, 5), replay(rows))


class Dueling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 32), nn.LayerNorm(32), nn.ReLU())
        self.advantage, self.value = nn.Linear(32, 4), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.trunk(x)
        advantage = self.advantage(x)
        return self.value(x) + advantage - advantage.mean(1, keepdim=True)  # type: ignore[no-any-return]


def double_dqn(rows: int) -> Made:
    net, target = Dueling(), Dueling()
    choice = torch.randint(4, (rows,))

    def loss(net: nn.Module, batch: Replay, choice: Tensor) -> Tensor:
        with torch.no_grad():
            best = net(batch.next_obs).argmax(1, keepdim=True)
            wanted = batch.reward + batch.discount * target(batch.next_obs).gather(1, best).squeeze(1)
        return F.smooth_l1_loss(net(batch.obs)[torch.arange(len(choice)), choice], wanted)

    return loss, (net, replay(rows), choice)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cell, self.out = kind(3, 16), nn.Linear(16, 2)  # type: ignore[call-arg]

    def forward(self, x: Tensor, state: Any, keep: Tensor) -> Tensor:
        found = []
        for t in range(x.shape[1]):
            state = torch.utils._pytree.tree_map(lambda s, t=t: s * keep[:, t, None], state)
            state = self.cell(x[:, t], state)
            found.append(self.out(state[0] if isinstance(state, tuple) else state))
        return torch.stack(found, 1)


def gru(rows: int) -> Made:
    def loss(net: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        log_prob = F.log_softmax(net(batch["x"], batch["h"], batch["keep"]), -1)
        return -(log_prob.gather(2, batch["action"].unsqueeze(2)).squeeze(2) * batch["advantage"]).mean()

    batch = {"x": torch.randn(rows, 4, 3), "h": torch.randn(rows, 16), "keep": (torch.rand(rows, 4) > 0.2).float()}
    return loss, (
        Recurrent(nn.GRUCell),
        batch | {"action": torch.randint(2, (rows, 4)), "advantage": torch.randn(rows, 4)},
    )


class Remembering(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], hidden: int, **settings: Any) -> None:
        super().__init__()
        self.memory = kind(3, hidden, batch_first=True, **settings)
        self.out = nn.Linear(hidden, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.memory(x)[0])  # type: ignore[no-any-return]


def remembering(rows: int, kind: type[nn.RNNBase] = nn.LSTM, hidden: int = 16, steps: int = 3, **settings: Any) -> Made:
    def loss(net: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        log_prob = F.log_softmax(net(batch["x"]), -1)
        return -(log_prob.gather(2, batch["action"].unsqueeze(2)).squeeze(2) * batch["advantage"]).mean()

    batch = {"x": torch.randn(rows, steps, 3), "action": torch.randint(2, (rows, steps))}
    return loss, (Remembering(kind, hidden, **settings), batch | {"advantage": torch.randn(rows, steps)})


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)  # type: ignore[no-any-return]


def batch_norm_over_two_batches(rows: int) -> Made:
    def loss(net: nn.Module, batch: Replay) -> Tensor:
        value, following = net(torch.cat([batch.obs, batch.next_obs])).squeeze(-1).chunk(2)
        return (value - batch.reward - batch.discount * following.detach()).pow(2).mean()

    return loss, (Normed(), replay(rows))


class Entities(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kind, self.embed = nn.Embedding(7, 8), nn.Linear(3, 8)
        self.attention, self.out = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 2)

    def forward(self, kinds: Tensor, features: Tensor) -> Tensor:
        x = self.kind(kinds) + self.embed(features)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.out(x.mean(1))  # type: ignore[no-any-return]


def attention_over_entities(rows: int) -> Made:
    def loss(net: nn.Module, kinds: Tensor, features: Tensor, returns: Tensor) -> Tensor:
        return F.huber_loss(net(kinds, features).prod(-1), returns)

    return loss, (Entities(), torch.randint(7, (rows, 5)), torch.randn(rows, 5, 3), torch.randn(rows))


def l2_and_temperature(rows: int) -> Made:
    log_alpha = nn.Parameter(torch.tensor(-0.5))

    def loss(net: nn.Module, log_alpha: Tensor, batch: Replay) -> Tensor:
        value = net(batch.obs).squeeze(-1)
        penalty = sum(p.square().sum() for p in net.parameters())
        return (value - batch.reward).abs().mean() + 1e-3 * penalty + log_alpha.exp() * value.detach().mean()

    return loss, (mlp(6, 16, 1), log_alpha, replay(rows))


class ImageAgent(nn.Module):
    """Young & Tian 2019 (arXiv:1903.03176): an actor and a critic of images of 10 x 10 pixels, uint8 [B, 10, 10, 4]."""

    def __init__(self, filters: int = 4, hidden: int = 16) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(4, filters, 3)
        self.hidden, self.actor, self.critic = (
            nn.Linear(64 * filters, hidden),
            nn.Linear(hidden, 6),
            nn.Linear(hidden, 1),
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        pixels = images.permute(0, 3, 1, 2).to(self.hidden.weight.dtype) / 255
        x = F.relu(self.hidden(F.relu(self.convolution(pixels), inplace=True).flatten(1)))
        return self.actor(x), self.critic(x).squeeze(-1)


def images(rows: int) -> Tensor:
    return torch.randint(256, (rows, 10, 10, 4), dtype=torch.uint8)


def ppo_of_images(rows: int) -> Made:
    def loss(agent: ImageAgent, batch: dict[str, Tensor], settings: Settings) -> Tensor:
        logits, value = agent(batch["obs"])
        policy = Categorical(logits=logits)
        actor_loss = surrogate(policy.log_prob(batch["action"]), batch, settings)
        return actor_loss + 0.5 * F.mse_loss(value, batch["returns"]) - 0.01 * policy.entropy().mean()

    batch = rollout(rows, 1, torch.randint(6, (rows,))) | {"obs": images(rows)}
    return loss, (ImageAgent(), batch, Settings())


def dqn_of_images(rows: int) -> Made:
    def loss(net: ImageAgent, target: ImageAgent, batch: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            wanted = batch["reward"] + 0.99 * target(batch["following"])[0].amax(1)
        return F.smooth_l1_loss(net(batch["obs"])[0].gather(1, batch["action"][:, None]).squeeze(1), wanted)

    batch = {"obs": images(rows), "following": images(rows), "reward": torch.randn(rows)}
    return loss, (ImageAgent(), ImageAgent(), batch | {"action": torch.randint(6, (rows,))})


class Histories(nn.Module):
    """Two critics of the last 27 readings of 6 sensors, [B, 6, 27], and an action."""

    def __init__(self, filters: int = 4, hidden: int = 16) -> None:
        super().__init__()
        layers = nn.Conv1d(6, filters, 5, 2), nn.ELU(), nn.MaxPool1d(2), nn.Conv1d(filters, filters, 3), nn.SiLU()
        self.convolutions = nn.Sequential(*layers, nn.Flatten())
        self.critics = nn.ModuleList(mlp(4 * filters + 2, hidden, 1) for _ in range(2))

    def forward(self, histories: Tensor, action: Tensor) -> Tensor:
        x = torch.cat([self.convolutions(histories), action], 1)
        return torch.stack([critic(x).squeeze(-1) for critic in self.critics])


def critics_of_histories(rows: int) -> Made:
    def loss(net: Histories, target: Histories, batch: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            wanted = batch["reward"] + 0.99 * target(batch["following"], batch["next_action"]).amin(0)
        return (net(batch["obs"], batch["action"]) - wanted).square().mean(1).sum()

    batch = {name: torch.randn(rows, 6, 27) for name in ("obs", "following")}
    batch |= {name: torch.randn(rows, 2) for name in ("action", "next_action")}
    return loss, (Histories(), Histories(), batch | {"reward": torch.randn(rows)})


ALL = [
    *(ppo_categorical, ppo_gaussian, ppo_beta, ppo_residual, sac_critic, td3_actor, quantiles, double_dqn, gru),
    *(batch_norm_over_two_batches, attention_over_entities, l2_and_temperature, dqn_of_images, critics_of_histories),
]
