"""A training loop of your own on actors, from whichever fragments are done first: own_loop.py [UPDATES]"""

import sys

import torch

import headrace as hr
from headrace.core.returns import gae

updates = int(sys.argv[1]) if len(sys.argv) > 1 else 400
spaces = hr.make("CartPole-v1", 1)
policy = hr.ActorCritic(spaces.observation_space, spaces.action_space)
optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
torch.set_num_threads(1)

with hr.Actors("CartPole-v1", policy, num_envs=32, num_steps=64, actors=4) as actors:
    for _ in range(updates):
        actors.start()
        for fragment in actors.get(2):
            part, value = fragment.rollout, fragment.rollout.value
            ends = (part.terminated, part.truncated)
            advantage = gae(part.reward, value[:-1], value[1:], *ends, 0.99, 0.95).flatten()
            valid = part.valid[:-1].flatten()
            now = policy.log_prob_entropy_value(policy.inputs(part), policy.rows(part.action))
            ratio = (now.log_prob - part.log_prob.flatten()).exp().clamp(max=1.0).detach()  # of an earlier policy
            error = now.value - (advantage + value[:-1].flatten())
            normalized = (advantage - advantage[valid].mean()) / advantage[valid].std()
            loss = -(ratio * now.log_prob * normalized)[valid].mean()
            (loss + 0.5 * error[valid].square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
        actors.publish()

print(hr.evaluate(policy, "CartPole-v1", episodes=20))
