"""A training loop of your own on actors: a policy gradient from whichever fragments are done first."""

from __future__ import annotations

import torch

import headrace as hr
from headrace.core.returns import gae


def main(updates: int = 150) -> float:
    """Train, and give the mean return of 10 episodes."""
    space = hr.make("CartPole-v1", 1)
    policy = hr.ActorCritic(space.observation_space, space.action_space)
    optimizer = torch.optim.Adam(policy.parameters(), 3e-3)
    with hr.Actors("CartPole-v1", policy, num_envs=32, num_steps=64, actors=4) as actors:
        for _ in range(updates):
            actors.start()
            for fragment in actors.get(2):
                part, value = fragment.rollout, fragment.rollout.value
                ends = (part.terminated, part.truncated)
                advantage = gae(part.reward, value[:-1], value[1:], *ends, 0.99, 0.95).flatten()
                valid = part.valid[:-1].flatten()
                now = policy.log_prob_entropy_value(policy.inputs(part), policy.rows(part.action))
                ratio = (now.log_prob - part.log_prob.flatten()).exp().clamp(max=1.0).detach()
                loss = -(ratio * now.log_prob * advantage)[valid].mean()
                loss = loss + 0.5 * (now.value - advantage - value[:-1].flatten())[valid].square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            actors.publish()
    return hr.evaluate(policy, "CartPole-v1", episodes=10).mean


if __name__ == "__main__":
    print(f"return {main():.0f}")
