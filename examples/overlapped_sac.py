"""SAC that collects while it learns: an actor steps the environments with the policy before the last update."""

from __future__ import annotations

import headrace as hr


def main(total_steps: int = 20_000) -> float:
    """Train, and give the mean return of 10 episodes."""
    settings = {"num_envs": 4, "actors": 1, "collection": "overlapped", "total_steps": total_steps}
    run = hr.train("sac", "Pendulum-v1", **settings)
    return hr.evaluate(run.policy, "Pendulum-v1", episodes=10).mean


if __name__ == "__main__":
    print(f"return {main():.0f}")
