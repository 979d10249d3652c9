"""collect_device: the policy that collects is on another device than the one that learns."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from multiprocessing import Pipe
from multiprocessing.reduction import send_handle
from os import getpid

import pytest
import torch
from helpers.same import all_weights
from helpers.saved import Drifting
from helpers.strict_device import strict_device

import headrace as hr
from headrace.core.fused import plain_only
from headrace.data.rollout import Column, each_column
from headrace.envs.parts import part_maker
from headrace.envs.workers.env import sendable
from headrace.parallel import actor as actors
from headrace.parallel.actor import Acting, CollectorSpec, Part
from headrace.parallel.apart_collector import ApartCollector
from headrace.parallel.fragments import Fragments
from headrace.parallel.weights import Weights, sent
from headrace.policies.actor_critic import ActorCritic
from headrace.training.trainer import Trainer

SMALL = {"num_envs": 4, "num_steps": 8, "hidden": (4,), "progress": "none"}
PPO = {"minibatch_size": 16, "epochs": 1}
CASES = {
    "ppo": ("ppo", "CartPole-v1", PPO),
    "staggered": ("ppo", "Pendulum-v1", PPO | {"stagger": True, "num_steps": 60, "normalize_observation": True}),
    "recurrent": ("a2c", "CartPole-v1", {"recurrent": "gru", "num_steps": 4}),
    "dqn": ("dqn", "CartPole-v1", {"learning_starts": 32, "num_steps": 4, "exploration_spread": 2.0}),
}


@contextmanager
def another_device():
    """The simulated device, where plain torch gives the bits of the CPU."""
    with plain_only(), strict_device() as device:
        yield device


def learned(algorithm, env, **options) -> torch.Tensor:
    """Weights after four updates; the second half follows a resumption."""
    first, second = (Trainer(algorithm, env, backend="inline", **SMALL | options) for _ in range(2))
    for _ in range(2):
        first.iterate()
    second.load_state_dict(first.state_dict())
    for _ in range(2):
        second.iterate()
    found = all_weights(second)
    collector = second.collector
    if options.get("collect_device"):
        assert isinstance(collector, ApartCollector)
        assert collector.inside.rollout.observation.device == torch.device(options["collect_device"])
        assert collector.rollout.observation.device == torch.device("cpu")
    first.close()
    second.close()
    return found


@pytest.mark.parametrize("case", CASES)
def test_collecting_on_another_device_gives_what_one_device_gives(case):
    algorithm, env, options = CASES[case]
    with another_device() as device:
        there = learned(algorithm, env, collect_device=str(device), **options)
        here = learned(algorithm, env, **options)
    assert torch.equal(there, here)


class Process:
    """An actor as its process runs it, in this one: on a simulated device, which other processes do not have."""

    def __init__(self, device: torch.device, policy: ActorCritic, part: Part) -> None:
        self.orders, theirs = Pipe()
        make = part_maker(Drifting)
        self.role = Acting(sendable(partial(make, part.size, part.first)), part, theirs)
        self.weights = Weights(policy, 2)
        columns = {"log_prob": Column(), "value": Column(bootstrap=True)}
        spec = CollectorSpec(
            sent(policy, "actors"), 8, columns, 0, self.weights.layout, True, 1, None, "float32", device
        )
        self.orders.send(spec)
        size = self.role.carry_out(actors.POLICY, 0)
        columns = self.role.collector.rollout.columns
        self.fragments = Fragments(8, part.size, columns, 2 * size)
        fragments, size = self.fragments, self.weights.memory.size
        self.orders.send((columns, fragments.room - 8, fragments.memory.size, size, fragments.slots))
        for memory in (self.fragments.memory, self.weights.memory):
            send_handle(self.orders, memory.descriptor, getpid())
        self.role.carry_out(actors.MEMORY, 0)

    def collect(self, number: int) -> list[list]:
        """A fragment's columns, and the state after it."""
        self.weights.write(number)
        self.role.carry_out(actors.COLLECT, number * actors.SLOTS + self.weights.slot(number))
        rollout = self.fragments.rollout(number)
        return [column.tolist() for _, column in each_column(rollout.columns, rollout)]


@torch.no_grad()
def test_an_actor_acts_on_the_device_and_gives_the_same_fragments():
    policy, found = ActorCritic(Drifting.observation_space, Drifting.action_space, hidden=(4,)), []
    with another_device() as device:
        for where in (torch.device("cpu"), device):
            process = Process(where, policy, Part(2, 3, 8))
            assert process.role.collector.rollout.observation.device == where
            assert next(process.role.policy.parameters()).device == where
            fragments = [process.collect(0)]
            policy.critic_out.bias.add_(1.0)  # which is published
            fragments.append(process.collect(1))
            process.role.carry_out(actors.RESTORE, 1)
            fragments.append(process.collect(1))
            policy.critic_out.bias.sub_(1.0)
            found.append(fragments)
            process.role.close()
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


def test_what_does_not_go_together_is_refused():
    with pytest.raises(
        ValueError, match="collect_device is 'cuda', and the environments you made are on cpu: leave it"
    ):
        Trainer("ppo", hr.make("CartPole-v1", 2), collect_device="cuda", progress="none")
    with pytest.raises(ValueError, match="unknown device 'gpu': use cpu, cuda"):
        Trainer("ppo", "CartPole-v1", collect_device="gpu", actors=2, progress="none")
