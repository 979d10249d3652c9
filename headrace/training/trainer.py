"""Training, step by step: an environment, an algorithm and a collector put together from settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from headrace import envs
from headrace.algorithms.base import Algorithm
from headrace.algorithms.group_algorithm import Grouped
from headrace.algorithms.registry import ALGORITHMS, absolute_reference, algorithm_classes
from headrace.core import rng
from headrace.core.device import torch_threads, without_denormals
from headrace.core.precision import computing, resolve
from headrace.core.timer import Timer
from headrace.data import finite
from headrace.data.rollout import Rollout
from headrace.envs.base import AsyncEnv
from headrace.envs.wrappers.conditioning import GIVEN, InformedEnv, informed
from headrace.parallel.collection_modes import make_collector
from headrace.parallel.collector import output_columns
from headrace.parallel.cuda_graphs import GraphedIteration
from headrace.parallel.placement import Placement, hidden_weights
from headrace.parallel.stagger import Stagger
from headrace.training import multi_agent
from headrace.training.config import EVAL_ENV_SETTINGS, TrainConfig, read_toml, settle
from headrace.training.episodes import Episodes
from headrace.training.scaling import derived

WARM_UP_STEPS = 2
MADE_WITH = (
    "workers",
    "on_error",
    "step_timeout",
    "group_by",
    *EVAL_ENV_SETTINGS,
    "reward_scale",
)  # settings that make() takes


class Trainer:
    """A training to be stepped by hand: `trainer.iterate()` collects one rollout and learns from it. Writes no files.

    algorithm: "ppo", or an Algorithm made by you. env: what make() takes, or worlds made by you: an Env, a
    gymnasium.vector.VectorEnv, a simulator. config: a TOML file; options: fields of TrainConfig or of the algorithm's
    config; workers may be Workers, which outlive this. agent_info: what each agent is told beside what it sees, see
    headrace.envs.wrappers.conditioning.
    Raises TypeError, ValueError for settings that are wrong.
    """

    def __init__(
        self,
        algorithm: str | Algorithm | None = None,
        env: Any = None,
        *,
        config: str | Path | None = None,
        agent_info: Any = None,
        **options: Any,
    ) -> None:
        file = read_toml(config) if config else {}
        named = {name: file.pop(name, None) for name in ("algorithm", "env", "agent_info")}
        agent_info = named["agent_info"] if agent_info is None else agent_info
        algorithm = named["algorithm"] if algorithm is None else algorithm
        self.source = named["env"] if env is None else env
        if _is_ready(self.source):
            self.source = envs.adapted(self.source)
        if algorithm is None or self.source is None:
            raise TypeError('name an algorithm and an environment, as in train("ppo", "CartPole-v1")')
        self._lent = options.get("workers") if hasattr(options.get("workers"), "lend") else None
        if self._lent is not None:
            options["workers"] = self._lent.number
        self._reference = absolute_reference(algorithm) if isinstance(algorithm, str) else algorithm.name
        self.config, algorithm_config, self.derived = _settings(algorithm, self.source, file, options)
        self.placement = Placement.on(self.config.device, _weights(algorithm, algorithm_config))
        if self.placement.learn.type == "cuda":
            from headrace.checks import parity

            parity.offer_kernels(self.placement.learn)
        self.env = informed(self._make_env(options.get("num_envs")), agent_info, self.config.eval_freq)
        if isinstance(algorithm, str):
            kind = algorithm_classes(algorithm).algorithm
            multi_agent.check_actions(
                algorithm, lambda name: algorithm_classes(name).algorithm.actions, ALGORITHMS, self.env
            )
            with torch_threads(1):  # several take longer over such small matrices, and give other bits
                self.algorithm: Algorithm = multi_agent.build(kind, algorithm_config, self.env, self.config.seed)
        else:
            self.algorithm = algorithm
            multi_agent.check_spaces(self.policy, self.env)
        precision: Any = resolve(self.config.precision, self.policy, self.env.device)
        self.config = replace(self.config, precision=precision)
        self.timer = Timer()
        try:
            self.collector = make_collector(
                *(self.config.collection, self.config.drop_slowest, self.env, self.policy, self.algorithm.num_steps),
                *(self.algorithm.columns(), self.config.seed, self.timer),
            )
        except BaseException:
            self.close()  # workers that were lent may be used again
            raise
        if self.config.drop_slowest and (self.config.stagger or "value" not in self.collector.rollout.columns):
            raise ValueError("stragglers is for algorithms that learn from whole rollouts, and goes without stagger")
        if self.config.stagger and "value" not in self.collector.rollout.columns:
            raise ValueError(f"stagger is for algorithms that learn from rollouts, not for {self.algorithm.name}")
        limit = self.env.max_steps if self.config.stagger else None
        self.stagger = Stagger(self.collector.rollout, limit, self.env.num_agents)
        self.episodes = Episodes(self.config.window)
        self.group_episodes = multi_agent.GroupEpisodes(self.env, self.config.window)
        self.ended: tuple[list[float], list[int]] = ([], [])  # returns and lengths of the last iteration's episodes
        self.steps = 0  # valid environment steps so far
        self.seconds = 0.0  # spent in iterate() so far
        self._steps_before, self._seconds_before = 0, 0.0  # those of the run that this one resumes
        self.graphed = self._graphed()
        with self._settled():
            self._warm_up()
            plans = [self.env.plan(), self.algorithm.prepare(self.collector.rollout)]
            self.plan = "\n".join(filter(None, plans))  # what to tell people before the start

    @property
    def policy(self) -> Any:
        """The policy that is learning."""
        return self.algorithm.policy

    def iterate(self) -> dict[str, float]:
        """Collect one rollout, learn from it, and give what learning measured. Raises NotFinite."""
        started = perf_counter()
        with self._settled():
            metrics = self._iterate()
        self.seconds += perf_counter() - started
        return metrics

    def _iterate(self) -> dict[str, float]:
        taken, progress = self.collector.steps, self.share()
        self.stagger.before(taken)
        learned = self.graphed.iterate(progress) if self.graphed else None
        rollout = self.collector.collect() if learned is None else self.collector.rollout
        self.stagger.after()
        finite.check_rollout(rollout, taken, self.steps)
        self.ended = self.episodes.add(rollout)
        self.group_episodes.add(rollout)
        self.steps += int(rollout.valid_steps())
        with self.timer("learning"):
            update = self.algorithm.update(rollout, progress) if learned is None else learned
            # one transfer for all of them
            metrics = dict(zip(update, torch.stack([x.float() for x in update.values()]).tolist(), strict=True))
        finite.check_metrics(metrics, self.steps)
        return metrics

    @contextmanager
    def _settled(self) -> Iterator[None]:
        """Torch's threads and precision inside, as the settings say."""
        with (
            torch_threads(self.config.threads),
            without_denormals(),
            computing(self.config.precision, self.env.device),
        ):
            yield

    def share(self) -> float:
        """Share of the training done, 0 .. 1: of total_steps, or else of max_episodes, or else of max_seconds."""
        limits = (
            (self.steps, self.config.total_steps),
            (self.episodes.count, self.config.max_episodes),
            (self.seconds, self.config.max_seconds),
        )
        return next((min(done / limit, 1.0) for done, limit in limits if limit is not None), 0.0)

    def reason_to_stop(self) -> str:
        """The name of a limit that is reached; empty while there is none."""
        config, mean = self.config, self.episodes.mean_return()
        if (
            config.target_return is not None
            and self.episodes.full
            and mean is not None
            and mean >= config.target_return
        ):
            return "target_return"
        for name, done in (
            ("total_steps", self.steps),
            ("max_seconds", self.seconds),
            ("max_episodes", self.episodes.count),
        ):
            limit = getattr(config, name)
            if limit is not None and done >= limit:
                return name
        return ""

    def steps_per_second(self) -> float:
        """Valid steps a second of training, since this process began it."""
        return (self.steps - self._steps_before) / max(self.seconds - self._seconds_before, 1e-9)

    def seconds_left(self) -> float | None:
        """Seconds of training until the first limit that can be foreseen; None where none can."""
        share = self.share()
        return self.seconds * (1 - share) / share if share else None

    def shares(self) -> dict[str, float]:
        """Share of the training time in each part: env, inference, learning, other."""
        spent = max(self.seconds - self._seconds_before, 1e-9)
        shares = {part: seconds / spent for part, seconds in self.timer.seconds.items()}
        return shares | {"other": max(0.0, 1.0 - sum(shares.values()))}

    def row(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """One row of metrics.jsonl."""
        return {
            "steps": self.steps,
            "seconds": round(self.seconds, 6),
            "iteration": self.algorithm.iteration,
            "episodes": self.episodes.count,
            "steps_per_second": round(self.steps_per_second(), 1),
            "return": self.episodes.mean_return(),
            "length": self.episodes.mean_length(),
            **self.group_episodes.row(),
            **({"restarts": self.env.restarts} if self.env.restarts else {}),
            **({"dropped_steps": self.collector.dropped_steps} if self.config.drop_slowest else {}),
            **metrics,
        }

    def state_dict(self) -> dict[str, Any]:
        """All from which load_state_dict() goes on, on the CPU bit for bit where the environment can be saved."""
        return {
            "algorithm": self.algorithm.state_dict(),
            "collector": self.collector.state_dict(),
            "episodes": self.episodes.state_dict(),
            "group_episodes": self.group_episodes.state_dict(),
            "steps": self.steps,
            "seconds": self.seconds,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from state_dict()."""
        self.algorithm.load_state_dict(state["algorithm"])
        self.collector.load_state_dict(state["collector"])
        self.episodes.load_state_dict(state["episodes"])
        self.group_episodes.load_state_dict(state.get("group_episodes", {}))
        self.steps = self._steps_before = state["steps"]
        self.seconds = self._seconds_before = state["seconds"]

    @property
    def short_name(self) -> str:
        """The environment's name without the file or module it is from; a PettingZoo world's is its module's."""
        place, _, name = self.env.name.rpartition(":")
        return place.rpartition(".")[2] if name == "parallel_env" else name

    def settings(self) -> dict[str, Any]:
        """What train(resume=...) needs to make this trainer again, in JSON's types."""
        own = self.algorithm.config
        return {
            "algorithm": self._reference,
            "env": _reference(self.source),
            **({"agent_info": GIVEN} if isinstance(self.env, InformedEnv) else {}),
            **asdict(self.config),
            **(asdict(own) if hasattr(own, "__dataclass_fields__") else {}),
        }

    def close(self) -> None:
        """Free the environments, unless they were brought ready-made."""
        if not _is_ready(self.source):
            self.env.close()

    @torch.no_grad()
    def _warm_up(self) -> None:
        """Collect, decide and learn once on made-up observations, then forget it: kernels are compiled before the clock
        runs."""
        steps = max(WARM_UP_STEPS, self.policy.sequence_length)
        num_envs, device = self.env.num_envs, self.env.device
        rollout = Rollout(steps, num_envs, self.collector.rollout.columns, device)
        rollout.valid.fill_(True)
        random = rng.uniform(0, rng.Purpose.ACTION, 0, steps, num_envs, self.policy.num_draws, device)
        rnn_state = self.policy.initial_state(num_envs)
        for t in range(steps):
            decision = self.policy.act(rollout.observation[t], rnn_state, random[t])
            rnn_state = decision.rnn_state
            for name in output_columns(rollout):
                getattr(rollout, name)[t] = getattr(decision, name)
        if "value" in rollout.columns:
            rollout.value[steps] = self.policy.value(rollout.observation[steps], rnn_state)
        with torch.enable_grad():
            self.algorithm.warm_up(rollout)
        self.collector.warm_up()
        self.timer.seconds.clear()

    def _make_env(self, asked: int | None) -> Any:
        """asked: num_envs where it was given by name."""
        config = self.config
        if not _is_ready(self.source):
            return self._made(config.backend)
        worlds = self.source.num_copies
        if asked not in (None, worlds):
            raise ValueError(f"num_envs is {asked}, and the environments you made are {worlds}")
        self.config = replace(config, num_envs=worlds)
        return self.source

    def _made(self, backend: str) -> Any:
        """The environments by a backend; as plain torch, where this machine's CUDA kernel cannot be trusted."""
        config, device = self.config, self.placement.collect
        processes: Any = {name: getattr(config, name) for name in MADE_WITH}
        processes["workers"] = self._lent or config.workers
        env = envs.make(self.source, config.num_envs, backend=backend, device=device, **processes)
        number = len(env.parts) if env.backend == "workers" and isinstance(env, AsyncEnv) else 0
        self.config = replace(config, workers=number or None)  # a resumed run has as many
        if env.backend != "cuda":
            return env
        from headrace.checks import parity

        return parity.trusted(env, lambda: self._made("torch"))

    def _graphed(self) -> GraphedIteration | None:
        """What replays iterations from a CUDA graph; None where the device has none, or it cannot be trusted."""
        # worlds of other libraries may launch where no graph sees it
        compiled = self.env.device.type == "cuda" and self.env.backend in ("cuda", "torch")
        captures = self.config.graphs and compiled and not isinstance(self.algorithm, Grouped)
        if not captures:
            return None
        from headrace.checks import parity

        return GraphedIteration(self.collector, self.algorithm) if parity.graphs_trusted(self.env.device) else None


def _settings(
    algorithm: Any, source: Any, file: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[TrainConfig, Any, dict[str, Any]]:
    """TrainConfig; the algorithm's config, None for an algorithm that brings its own; and what of them follows from
    num_envs."""
    if isinstance(algorithm, type):
        name = algorithm.__name__
        raise TypeError(f"{name} is a class: give its name, {name.lower()!r}, or one you made, {name}(policy)")
    ready = not isinstance(algorithm, str)
    kind, config_class = (algorithm, None) if ready else algorithm_classes(algorithm)
    defaults = {} if _is_ready(source) else envs.spec(source).defaults.get(kind.name, {})
    follows = derived(config_class, defaults, {**file, **options})
    return *settle(config_class, {**defaults, **follows}, file, options), follows


def _weights(algorithm: Any, config: Any) -> int:
    """How many weights will learn: those of a policy that is there, else those between the hidden layers to be made."""
    if not isinstance(algorithm, str):
        return sum(parameter.numel() for parameter in algorithm.policy.parameters())
    return hidden_weights(getattr(config, "hidden", ()))


def _is_ready(source: Any) -> bool:
    """Whether this is an Env already, rather than what make() makes one of."""
    return not isinstance(source, str | type) and hasattr(source, "num_envs") and hasattr(source, "step")


def _reference(source: Any) -> str | None:
    """Words by which another process finds the environment again, from any folder; None where there are none."""
    if _is_ready(source):
        return None
    name = envs.spec(source).name
    place, colon, member = name.rpartition(":")
    if "<" in name:  # a lambda, or something local to a function
        return None
    return f"{Path(place).resolve()}{colon}{member}" if place.endswith(".py") else name
