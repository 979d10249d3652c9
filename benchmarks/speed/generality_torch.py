"""The learning step as a good programmer writes it in PyTorch, in the manner of CleanRL's single files.

Modules, torch.distributions, torch.optim.Adam in its fused form, gradients clipped in one call, minibatches gathered
once. Nothing is read from Headrace but the numbers to learn from.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Distribution, Normal
from torch.nn.functional import mse_loss, one_hot, smooth_l1_loss
from torch.nn.utils import clip_grad_norm_

Distribution.set_default_validate_args(False)
ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "gelu": nn.GELU, "silu": nn.SiLU}


def mlp(inputs: int, hidden: tuple[int, ...], activation: str, outputs: int = 0, norm: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(inputs, size), *([nn.LayerNorm(size)] if norm else []), ACTIVATIONS[activation]()]
        inputs = size
    return nn.Sequential(*layers, *([nn.Linear(inputs, outputs)] if outputs else []))


class Encoder(nn.Module):
    """Observations of a space as vectors of `size` numbers."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.space, self.net = space, None
        self.members = nn.ModuleDict()
        if isinstance(space, Dict):
            self.members.update({name: Encoder(member) for name, member in space.items()})
            self.size = sum(member.size for member in self.members.values())
        elif isinstance(space, Discrete):
            self.size = int(space.n)
        elif len(space.shape) == 3:
            convolutions = [nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()]
            self.net = nn.Sequential(*convolutions, nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten())
            self.net.extend((nn.Linear(64 * 7 * 7, 512), nn.ReLU()))
            self.size = 512
        else:
            self.size = int(space.shape[0])

    def forward(self, observation: Any) -> Tensor:
        if isinstance(self.space, Dict):
            return torch.cat([member(observation[name]) for name, member in self.members.items()], 1)
        if isinstance(self.space, Discrete):
            return one_hot(observation.long(), self.size).float()
        return observation.float() if self.net is None else self.net(observation.permute(0, 3, 1, 2) / 255.0)


class Agent(nn.Module):
    """Actor and critic, with a recurrent network after the hidden layers where the settings say so."""

    def __init__(self, settings: dict[str, Any], observation: Space, action: Space) -> None:
        super().__init__()
        self.action_space, self.encoder = action, Encoder(observation)
        hidden, activation = settings.get("hidden", (64, 64)), settings.get("activation", "tanh")
        self.shared, self.kind = settings.get("shared", False), settings.get("recurrent", "none")
        self.size, norm = settings.get("rnn_size", 64), settings.get("layer_norm", False)
        trunks = [mlp(self.encoder.size, hidden, activation, 0, norm) for _ in range(1 if self.shared else 2)]
        self.trunks = nn.ModuleList(trunks)
        width = hidden[-1] if hidden else self.encoder.size
        if self.kind != "none":
            cell = nn.GRU if self.kind == "gru" else nn.LSTM
            self.rnns = nn.ModuleList(cell(width, self.size) for _ in trunks)
            width = self.size
        self.squash = settings.get("distribution") == "squashed"
        self.actor, self.critic = nn.Linear(width, _parameters(action)), nn.Linear(width, 1)
        if isinstance(action, Box):
            self.log_std = nn.Parameter(torch.zeros(1, action.shape[0]))

    def features(self, observation: Any, done: Tensor | None = None) -> list[Tensor]:
        encoded = self.encoder(observation)
        found = [trunk(encoded) for trunk in self.trunks]
        if self.kind == "none":
            return found
        assert done is not None
        return [self.unroll(rnn, x.unflatten(0, done.shape), done) for rnn, x in zip(self.rnns, found, strict=True)]

    def unroll(self, rnn: nn.Module, x: Tensor, done: Tensor) -> Tensor:
        """Step by step, with the state set to zero where an episode began: CleanRL's ppo_atari_lstm.py."""
        zeros = x.new_zeros(1, x.shape[1], self.size)
        state: Any = zeros if self.kind == "gru" else (zeros, zeros)
        outputs = []
        for now, ended in zip(x, done, strict=True):
            keep = (1.0 - ended).view(1, -1, 1)
            state = keep * state if self.kind == "gru" else (keep * state[0], keep * state[1])
            output, state = rnn(now.unsqueeze(0), state)
            outputs.append(output)
        return torch.cat(outputs).flatten(0, 1)

    def forward(self, observation: Any, done: Tensor | None = None) -> tuple[Any, Tensor]:
        features = self.features(observation, done)
        return self.distribution(self.actor(features[0])), self.critic(features[-1]).flatten()

    def distribution(self, output: Tensor) -> Any:
        match self.action_space:
            case MultiDiscrete():
                return [Categorical(logits=part) for part in output.split(self.action_space.nvec.tolist(), 1)]
            case MultiBinary():
                return Bernoulli(logits=output)
            case Box():
                return Normal(output, self.log_std.exp().expand_as(output))
        return Categorical(logits=output)

    def log_prob_entropy(self, distribution: Any, action: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(distribution, list):
            parts = list(zip(distribution, action.unbind(1), strict=True))
            return sum(d.log_prob(a) for d, a in parts), sum(d.entropy() for d, _ in parts)  # type: ignore[return-value]
        if self.squash:
            x = action.clamp(-1 + 1e-6, 1 - 1e-6).atanh()
            log_prob = distribution.log_prob(x) - torch.log(1 - action.square() + 1e-6)
            return log_prob.sum(1), -log_prob.sum(1)
        log_prob, entropy = distribution.log_prob(action), distribution.entropy()
        return (log_prob, entropy) if log_prob.dim() == 1 else (log_prob.sum(1), entropy.sum(1))

    @torch.no_grad()
    def act(self, observation: Any) -> tuple[Tensor, Tensor, Tensor]:
        rows = len(next(iter(observation.values())) if isinstance(observation, dict) else observation)
        done = torch.zeros(1, rows) if self.kind != "none" else None
        distribution, value = self(observation, done)
        if isinstance(distribution, list):
            action = torch.stack([d.sample() for d in distribution], 1)
        else:
            action = distribution.sample().tanh() if self.squash else distribution.sample()
        return action, self.log_prob_entropy(distribution, action)[0], value


def _parameters(action: Space) -> int:
    match action:
        case Discrete():
            return int(action.n)
        case MultiDiscrete():
            return int(action.nvec.sum())
    return int(action.shape[0])


def take(columns: Any, rows: Tensor) -> Any:
    return {name: take(x, rows) for name, x in columns.items()} if isinstance(columns, dict) else columns[rows]


def on_policy(
    algorithm: str, settings: dict[str, Any], agent: Any, batch: dict[str, Any], shape: tuple[int, int]
) -> Callable[[], None]:
    """One update from a rollout's rows `batch`; shape: (steps, environments), environments along the second."""
    config = {"epochs": 1, "minibatch_size": 10**9, "max_grad_norm": 0.5, "value_coef": 0.5, "entropy_coef": 0.0}
    config |= settings
    optimizer = torch.optim.Adam(agent.parameters(), config["learning_rate"], eps=1e-5, fused=True)
    rows, recurrent = shape[0] * shape[1], settings.get("recurrent", "none") != "none"
    size = min(config["minibatch_size"], rows)

    def minibatches() -> Any:
        if not recurrent:
            yield from (torch.randperm(rows)[: rows // size * size]).split(size)
            return
        length = settings.get("sequence_length") or shape[0]
        starts = torch.arange(0, shape[0], length).repeat_interleave(shape[1])
        columns = torch.arange(shape[1]).repeat(shape[0] // length)
        for part in torch.randperm(len(starts)).split(max(1, size // length)):
            steps = starts[part] + torch.arange(length).unsqueeze(1)
            yield (steps * shape[1] + columns[part]).flatten()

    def loss_of(part: dict[str, Any]) -> Tensor:
        if algorithm == "pqn":
            value = agent(part["observation"]).gather(1, part["action"].long().unsqueeze(1)).squeeze(1)
            return 0.5 * mse_loss(value, part["returns"])
        done = part["done"].view(settings.get("sequence_length") or shape[0], -1) if recurrent else None
        distribution, value = agent(part["observation"], done)
        log_prob, entropy = agent.log_prob_entropy(distribution, part["action"])
        advantage = part["advantage"]
        if algorithm == "ppo":
            ratio = (log_prob - part["log_prob"]).exp()
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            low, high = 1 - config.get("clip", 0.2), 1 + config.get("clip", 0.2)
            policy_loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(low, high)).mean()
        else:
            policy_loss = -(log_prob * advantage).mean()
        value_loss = mse_loss(value, part["returns"])
        return policy_loss - config["entropy_coef"] * entropy.mean() + config["value_coef"] * value_loss

    def update() -> None:
        for _ in range(config["epochs"]):
            for order in minibatches():
                loss = loss_of(take(batch, order) if len(order) < rows else batch)
                optimizer.zero_grad()
                loss.backward()
                clip_grad_norm_(agent.parameters(), config["max_grad_norm"])
                optimizer.step()

    return update


def trpo(settings: dict[str, Any], agent: Any, batch: dict[str, Any]) -> Callable[[], None]:
    """Conjugate gradients on Fisher products by double backward, a line search, and the critic's minibatches."""
    optimizer = torch.optim.Adam([*agent.trunks[1].parameters(), *agent.critic.parameters()], 1e-3, fused=True)
    parameters = [*agent.trunks[0].parameters(), *agent.actor.parameters()]
    observation, action = batch["observation"], batch["action"]
    advantage = (batch["advantage"] - batch["advantage"].mean()) / (batch["advantage"].std() + 1e-8)

    def flat(grads: Any) -> Tensor:
        return torch.cat([x.reshape(-1) for x in grads])

    def policy() -> Any:
        return agent.distribution(agent.actor(agent.trunks[0](agent.encoder(observation))))

    def update() -> None:
        with torch.no_grad():
            old = policy()
        now = policy()
        kl = torch.distributions.kl_divergence(old, now).mean()
        objective = ((now.log_prob(action) - old.log_prob(action)).exp() * advantage).mean()
        gradient = flat(torch.autograd.grad(objective, parameters, retain_graph=True))
        kl_gradient = flat(torch.autograd.grad(kl, parameters, create_graph=True))

        def fisher(vector: Tensor) -> Tensor:
            return flat(torch.autograd.grad(kl_gradient @ vector, parameters, retain_graph=True)) + 0.1 * vector

        x, residual = torch.zeros_like(gradient), gradient.clone()
        direction, square = residual.clone(), residual @ residual
        for _ in range(10):
            image = fisher(direction)
            length = square / (direction @ image)
            x, residual = x + length * direction, residual - length * image
            before, square = square, residual @ residual
            direction = residual + square / before * direction
        step = (2 * 0.01 / (x @ fisher(x))).sqrt() * x
        start = [p.detach().clone() for p in parameters]
        for size in (0.8**k for k in range(10)):
            with torch.no_grad():
                for p, begin, part in zip(parameters, start, step.split([p.numel() for p in parameters]), strict=True):
                    p.copy_(begin + size * part.view_as(p))
                new = policy()
                gain = ((new.log_prob(action) - old.log_prob(action)).exp() * advantage).mean() - objective
                if gain > 0 and torch.distributions.kl_divergence(old, new).mean() <= 0.01:
                    break
        for _ in range(10):
            for order in torch.randperm(len(advantage)).split(256):
                features = agent.trunks[1](agent.encoder(take(observation, order)))
                loss = mse_loss(agent.critic(features).flatten(), batch["returns"][order])
                optimizer.zero_grad()
                loss.backward()
                clip_grad_norm_(agent.critic.parameters(), 0.5)
                optimizer.step()

    return update


class Buffer:
    """A replay buffer in tensors; rows are drawn uniformly, or by priority from a cumulative sum."""

    def __init__(self, columns: dict[str, Any], prioritized: bool) -> None:
        self.columns, self.rows = columns, len(columns["reward"])
        self.priority = torch.ones(self.rows, dtype=torch.float64) if prioritized else None

    def sample(self, size: int) -> tuple[dict[str, Any], Tensor, Tensor | float]:
        if self.priority is None:
            rows = torch.randint(self.rows, (size,))
            return take(self.columns, rows), rows, 1.0
        total = self.priority.cumsum(0)
        rows = torch.searchsorted(total, torch.rand(size, dtype=torch.float64) * total[-1]).clamp(max=self.rows - 1)
        weight = (self.rows * self.priority[rows] / total[-1]) ** -0.4
        return take(self.columns, rows), rows, (weight / weight.max()).float()


class Dueling(nn.Module):
    def __init__(self, inputs: int, hidden: tuple[int, ...], activation: str, outputs: int) -> None:
        super().__init__()
        self.trunk = mlp(inputs, hidden[:-1], activation)
        self.advantage, self.value = (mlp(hidden[-2], hidden[-1:], activation, n) for n in (outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.trunk(x)
        advantage = self.advantage(x)
        return self.value(x) + advantage - advantage.mean(1, keepdim=True)


def q_network(settings: dict[str, Any], inputs: int, outputs: int, norm: bool = False) -> nn.Module:
    hidden, activation = settings.get("hidden", (128, 128)), settings.get("activation", "relu")
    if settings.get("dueling"):
        return Dueling(inputs, hidden, activation, outputs)
    return mlp(inputs, hidden, activation, outputs, settings.get("layer_norm", norm))


def epsilon_greedy(net: nn.Module, observation: Tensor, actions: int) -> Callable[[], Tensor]:
    """Function that chooses actions in training."""
    rows, epsilon = len(observation), 0.05

    @torch.no_grad()
    def act() -> Tensor:
        random = torch.randint(actions, (rows,))
        return torch.where(torch.rand(rows) < epsilon, random, net(observation).argmax(1))

    return act


def dqn(settings: dict[str, Any], net: nn.Module, columns: dict[str, Any], updates: int) -> Callable[[], None]:
    """Double DQN: `updates` gradient steps on minibatches of the replay buffer."""
    target, buffer = copy.deepcopy(net), Buffer(columns, settings.get("prioritized", False))
    optimizer = torch.optim.Adam(net.parameters(), settings["learning_rate"], fused=True)

    def update() -> None:
        for _ in range(updates):
            batch, rows, weight = buffer.sample(settings.get("batch_size", 64))
            with torch.no_grad():
                best = net(batch["next_observation"]).argmax(1, keepdim=True)
                after = target(batch["next_observation"]).gather(1, best).squeeze(1)
                goal = batch["reward"] + 0.99 * (1 - batch["terminated"]) * after
            value = net(batch["observation"]).gather(1, batch["action"].long().unsqueeze(1)).squeeze(1)
            loss = (smooth_l1_loss(value, goal, reduction="none") * weight).mean()
            optimizer.zero_grad()
            loss.backward()
            clip_grad_norm_(net.parameters(), 10.0)
            optimizer.step()
            if buffer.priority is not None:
                buffer.priority[rows] = ((goal - value.detach()).abs().double() + 1e-6) ** 0.6

    return update


def actor_critic(
    algorithm: str, settings: dict[str, Any], sizes: tuple[int, int], columns: dict[str, Any], updates: int
) -> tuple[nn.Module, Callable[[], None]]:
    """SAC, TD3 or DDPG as CleanRL's sac_continuous_action.py and td3_continuous_action.py; sizes: of an observation and
    an action. Returns the actor and the update."""
    inputs, actions = sizes
    hidden, activation = settings.get("hidden", (256, 256)), settings.get("activation", "relu")
    actor = mlp(inputs, hidden, activation, actions * (2 if algorithm == "sac" else 1))
    critics = nn.ModuleList(
        mlp(inputs + actions, hidden, activation, 1) for _ in range(1 if algorithm == "ddpg" else 2)
    )
    slow_actor, slow_critics = copy.deepcopy(actor), copy.deepcopy(critics)
    rate, size = settings["learning_rate"], settings.get("batch_size", 256)
    of_critics = torch.optim.Adam(critics.parameters(), rate, fused=True)
    of_actor = torch.optim.Adam(actor.parameters(), rate, fused=True)
    log_alpha = torch.zeros(1, requires_grad=True)
    of_alpha = torch.optim.Adam([log_alpha], rate)
    buffer = Buffer(columns, False)

    def values(of: Any, observation: Tensor, action: Tensor) -> list[Tensor]:
        x = torch.cat((observation, action), 1)
        return [critic(x).squeeze(1) for critic in of]

    def sample(observation: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = actor(observation).chunk(2, 1)
        normal = Normal(mean, log_std.clamp(-20, 2).exp())
        x = normal.rsample()
        action = x.tanh()
        return action, (normal.log_prob(x) - torch.log(1 - action.square() + 1e-6)).sum(1)

    def follow() -> None:
        with torch.no_grad():
            pairs = ((slow_critics, critics), *([] if algorithm == "sac" else [(slow_actor, actor)]))
            for slow, fast in pairs:
                torch._foreach_lerp_(list(slow.parameters()), list(fast.parameters()), 0.005)

    def update() -> None:
        for number in range(updates):
            batch, _, _ = buffer.sample(size)
            observation, later = batch["observation"], batch["next_observation"]
            with torch.no_grad():
                if algorithm == "sac":
                    next_action, log_prob = sample(later)
                    bonus = -log_alpha.exp() * log_prob
                else:
                    noise = (0.2 * torch.randn(size, actions)).clamp(-0.5, 0.5) if algorithm == "td3" else 0.0
                    next_action, bonus = (slow_actor(later).tanh() + noise).clamp(-1, 1), 0.0
                after = torch.stack(values(slow_critics, later, next_action)).amin(0) + bonus
                goal = batch["reward"] + 0.99 * (1 - batch["terminated"]) * after
            loss = sum(mse_loss(value, goal) for value in values(critics, observation, batch["action"]))
            of_critics.zero_grad()
            loss.backward()
            of_critics.step()
            if algorithm == "td3" and number % 2 == 0:
                continue
            if algorithm == "sac":
                action, log_prob = sample(observation)
                lowest = torch.min(*values(critics, observation, action))
                actor_loss = (log_alpha.exp().detach() * log_prob - lowest).mean()
            else:
                actor_loss = -values(critics[:1], observation, actor(observation).tanh())[0].mean()
            of_actor.zero_grad()
            actor_loss.backward()
            of_actor.step()
            if algorithm == "sac":
                alpha_loss = (-log_alpha.exp() * (log_prob.detach() - actions)).mean()
                of_alpha.zero_grad()
                alpha_loss.backward()
                of_alpha.step()
            follow()

    return actor, update
