"""Threads of torch where they are not given."""

import numpy as np
import torch

from headrace.data.spaces import Box, Discrete
from headrace.parallel.placement import Placement
from headrace.policies.actor_critic import ActorCritic
from headrace.training import build
from headrace.training.plan import settle


def threads(pixels: int, **options):
    """Number of threads of a training from square images."""
    plan = settle("ppo", "CartPole-v1", None, None, {"num_envs": 2, **options})
    policy = ActorCritic(Box(0, 255, (pixels, pixels), np.uint8), Discrete(2), hidden=(), images="small")
    return build._threads(plan, plan.config, policy, Placement.on("cpu"))


def test_large_images_get_all_cores_unless_threads_are_given(monkeypatch):
    monkeypatch.setattr(build, "cores", lambda: 3)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert (threads(64), threads(20)) == (3, 1)
    assert (threads(64, threads=1), threads(64, threads=None)) == (1, None)
    assert threads(64, actors=2, collection="overlapped") == 1  # actors compute meanwhile
    assert threads(64, shards=2) == 1  # the bits of two learners
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # OMP_NUM_THREADS
    assert threads(64) == 2
