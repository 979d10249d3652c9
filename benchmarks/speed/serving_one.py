"""One measurement of serving.py: LIBRARY FOLDER THREADS PROCESSES SECONDS. Prints one JSON object."""

from __future__ import annotations

import json
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

WARM_UP = 200  # calls of each thread that are not counted


def serve(library: str, folder: str) -> Callable[[Any], object]:
    """A call that takes one observation and gives the most likely action."""
    if library == "numpy":
        sys.path.insert(0, folder)
        from policy import Policy

        return Policy().predict
    if library == "onnxruntime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(f"{folder}/policy.onnx", options, providers=["CPUExecutionProvider"])
        return lambda observation: session.run(["action"], {"observation": observation[None]})[0][0]
    import torch

    torch.set_num_threads(1)
    if library == "sb3":
        from stable_baselines3 import PPO

        model = PPO("MlpPolicy", "CartPole-v1", device="cpu", policy_kwargs={"net_arch": [64, 64]})
        return lambda observation: model.predict(observation, deterministic=True)
    return policy(library).predict


def policy(library: str) -> Any:
    """The policy whose predict() is measured. `headrace-masked` reads the observation and the mask as one vector."""
    from headrace.data.flat_dict import FlatDict
    from headrace.data.spaces import Box, Discrete, MultiBinary
    from headrace.policies.actor_critic import ActorCritic
    from headrace.policies.actor_q import ActorQ
    from headrace.policies.q_network import QNetwork
    from headrace.policies.recurrent import RecurrentActorCritic

    seen, choices, forces = Box(-5, 5, (4,)), Discrete(2), Box(-1, 1, (2,))
    if library == "headrace-masked":
        return ActorCritic(FlatDict({"observation": Box(-5, 5, (2,)), "action_mask": MultiBinary(2)}), choices)
    if library == "headrace-sac":
        return ActorQ(seen, forces)
    if library == "headrace-td3":
        return ActorQ(seen, forces, deterministic=True)
    if library == "headrace-dqn":
        return QNetwork(seen, choices)
    return RecurrentActorCritic(seen, choices) if library == "headrace-gru" else ActorCritic(seen, choices)


def latencies(library: str, folder: str, threads: int, seconds: float, barrier: Any) -> np.ndarray:
    """Seconds of each call in this process."""
    call, ready = serve(library, folder), threading.Barrier(threads)

    def one(seed: int) -> list[float]:
        observations = np.random.default_rng(seed).uniform(-1, 1, (WARM_UP, 4)).astype(np.float32)
        for observation in observations:
            call(observation)
        if ready.wait() == 0 and barrier is not None:
            barrier.wait()
        ready.wait()
        times, began = list[float](), time.perf_counter()
        end = began + seconds
        while began < end:
            call(observations[len(times) % WARM_UP])
            now = time.perf_counter()
            times.append(now - began)
            began = now
        return times

    with ThreadPoolExecutor(threads) as pool:
        return np.concatenate(list(pool.map(one, range(threads))))


def in_process(arguments: tuple[Any, ...], barrier: Any, results: Any) -> None:
    """latencies() in a process of its own."""
    results.put(latencies(*arguments, barrier))


def main() -> None:
    library, folder, *numbers = sys.argv[1:]
    threads, processes, seconds = int(numbers[0]), int(numbers[1]), float(numbers[2])
    arguments = (library, folder, threads, seconds)
    if processes == 1:
        times = latencies(*arguments, None)
    else:
        context = multiprocessing.get_context("spawn")
        barrier, results = context.Barrier(processes), context.Queue()
        started = [context.Process(target=in_process, args=(arguments, barrier, results)) for _ in range(processes)]
        for process in started:
            process.start()
        times = np.concatenate([results.get(timeout=60 + seconds) for _ in started])
        for process in started:
            process.join()
    p50, p99 = np.percentile(times * 1e6, (50, 99))
    row = {"library": library, "threads": threads, "processes": processes, "p50_us": round(p50, 1)}
    print(json.dumps(row | {"p99_us": round(p99, 1), "calls_per_s": round(len(times) / seconds)}))


if __name__ == "__main__":
    main()
