"""A small call of every fused function, which its kernel serves."""

import torch

from headrace import envs
from headrace.algorithms import a2c, ppo, pqn, reinforce, sac
from headrace.algorithms.off_policy import learn_from_replay
from headrace.algorithms.on_policy import Targets, process_and_learn
from headrace.core.returns import explained_variance, gae, normalized
from headrace.core.rng import shuffled, uniform
from headrace.data.priorities import add_up, descend
from headrace.data.rollout import Rollout
from headrace.data.spaces import Box, Discrete, action_column, env_columns
from headrace.parallel.collector import InlineCollector, steps
from headrace.parallel.learning_collector import LearningCollector
from headrace.parallel.learning_collector import steps as learning_collector_steps
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.rnn import RNNCell

STEPS, ENVS, ROWS = 6, 8, 24
OBSERVATIONS, CHOICES, BOX = Box(-3, 3, (5,)), Discrete(3, start=1), Box(-2, 2, (2,))
HIDDEN = {"hidden": (16, 16)}


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def flags(*shape):
    return normal(*shape) > 1


def on_policy(space=BOX, kind=ppo.PPO, **settings):
    """PPO, or another algorithm of this kind, and the arguments of PPO's learning call on a made-up rollout."""
    settings = {**HIDDEN, "num_steps": STEPS, **settings}
    if kind is not a2c.A2C and kind is not reinforce.Reinforce:
        settings["minibatch_size"] = 16
    config = type(kind.config)(**settings)
    algorithm = kind.build(config, OBSERVATIONS, space, 0, "cpu")
    steps = config.num_steps
    columns = env_columns(OBSERVATIONS) | {"action": action_column(space)} | algorithm.columns()
    rollout = Rollout(steps, ENVS, columns)
    rollout.observation.copy_(normal(*rollout.observation.shape))
    action = normal(*rollout.action.shape)
    rollout.action.copy_(action if space is BOX else (action > 0).int() + int(space.start))
    rollout.valid.fill_(True)
    if kind is not pqn.PQN:
        rollout.log_prob.copy_(-1 + 0.1 * normal(steps, ENVS))
    targets = Targets(normal(steps, ENVS), normal(steps, ENVS) * 2, rollout.valid[:-1])
    order = torch.arange(steps * ENVS).repeat(2, 1)
    return [algorithm.policy, algorithm.optimizer, rollout, targets, order, config]


def learning_collector():
    """SAC on a compiled environment, that learns from the first of its steps on."""
    env = envs.make("Pendulum-v1", ENVS, backend="cpu", threads=1)
    settings = {"num_steps": STEPS, "train_freq": 2, "learning_starts": 1, "batch_size": ROWS, "gradient_steps": 1}
    config = sac.SACConfig(**HIDDEN, **settings, buffer_size=1000)
    algorithm = sac.SAC.build(config, env.observation_space, env.action_space, 0, "cpu")
    collector = LearningCollector(algorithm, env, algorithm.policy, STEPS, algorithm.columns(), 0)
    algorithm.prepare(collector.rollout)
    return collector


def call(name):
    """The fused function of this name, and the arguments of a call."""
    if name == "rng.uniform":
        return uniform, [1, 2, 0, 4, ENVS, 6, "cpu"]
    if name == "rng.shuffled":
        return shuffled, [7, 3, 20]
    if name.startswith("priorities."):
        tree = torch.zeros(16, dtype=torch.float64)
        tree[8:14] = normal(6).double().abs()
        add_up.plain(tree, 3, torch.arange(8))
        if name == "priorities.descend":
            return descend, [tree, 3, tree[1] * torch.rand(2, 5, dtype=torch.float64)]
        return add_up, [tree, 3, torch.tensor([1, 5])]
    if name.startswith("returns."):
        columns = [normal(STEPS, ENVS) * k for k in (1, 2, 3)]
        if name == "returns.gae":
            return gae, [*columns, flags(STEPS, ENVS), flags(STEPS, ENVS), 0.99, 0.95]
        if name == "returns.normalized":
            return normalized, [columns[0], ~flags(STEPS, ENVS)]
        return explained_variance, [*columns[:2], ~flags(STEPS, ENVS)]
    if name == "rnn.sequence":
        cell = RNNCell("gru", 1, 3, 16, torch.Generator().manual_seed(0))
        return RNNCell.sequence, [cell, normal(1, STEPS, ENVS, 3), normal(ENVS, 16), ~flags(STEPS, ENVS), 0]
    if name == "ppo.learn":
        return ppo.learn, on_policy(epochs=2)
    if name == "on_policy.process_and_learn":
        policy, _, rollout, _, _, config = on_policy(epochs=2)
        return process_and_learn, [ppo.PPO(policy, config), rollout]
    if name.startswith("actor_critic."):
        policy, observation = on_policy()[0], normal(ENVS, 5)
        if name == "actor_critic.value":
            return ActorCritic.value, [policy, observation, None]
        return ActorCritic.act, [policy, observation, None, torch.rand(ENVS, policy.num_draws)]
    if name.startswith("off_policy."):
        collector = learning_collector()
        random = torch.rand(STEPS, ENVS, collector.policy.num_draws)
        if name == "off_policy.steps":
            return learning_collector_steps, [collector, random]
        collector.algorithm.replay.append(collector.rollout)
        return learn_from_replay, [collector.algorithm, 2]
    assert name == "collector.steps"
    env = envs.make("Pendulum-v1", ENVS, backend="cpu", threads=1)
    config = ppo.PPOConfig(num_steps=STEPS, **HIDDEN)
    algorithm = ppo.PPO.build(config, env.observation_space, env.action_space, 0, "cpu")
    source = InlineCollector(env, algorithm.policy, STEPS, algorithm.columns(), seed=0)
    return steps, [source, 0]
