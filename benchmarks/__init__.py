"""Programs that measure Headrace: `python -m benchmarks.speed.ppo_throughput`, from the repository's folder."""
