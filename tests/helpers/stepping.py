"""Environments stepped without a policy."""


def stepped(env, steps):
    """A rollout of an env, with action 0 in each step."""
    rollout = env.rollout(steps, env.columns())
    env.reset(rollout, 0)
    for t in range(steps):
        env.step(rollout, t)
    return rollout
