"""Evaluates a policy: returns of whole episodes in the reference environment."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from numbers import Integral
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from headrace import envs
from headrace.agent_groups.group_policy import GroupedPolicy
from headrace.core.device import torch_threads
from headrace.core.looking import users_code
from headrace.core.processes.state import same_folder
from headrace.core.types import Json, Settings
from headrace.envs.base import Env
from headrace.envs.construct import Wrappers
from headrace.envs.gym.change_params import has_several
from headrace.envs.gym.learned import Carried, carried, tell_learned
from headrace.envs.registry import Source
from headrace.evaluation.playing import Evaluation, Watch, played
from headrace.evaluation.recipe import Recipe, is_port, kernel_class, kinds_of, recipe_of
from headrace.policies.base import Policy, check_policy

if TYPE_CHECKING:
    from headrace.envs.workers.process import Workers

FEW_ENVS = 8  # number of environments if neither a training nor a setting determines it


def evaluate(
    policy: Policy,
    env: Env | Source | Recipe,
    episodes: int = 100,
    seed: int = 0,
    deterministic: bool = True,
    most_steps: int | None = None,
    workers: int | Workers | None = None,
    frame_stack: int = 1,
    time_limit: int | None = None,
    info_mask: bool = False,
    params: Settings | None = None,
    env_kwargs: Settings | None = None,
    wrapper: Wrappers = (),
    ignore: Sequence[str] = (),
    agent_info: Any = None,
    reference: bool = True,
    watch: Watch | None = None,
    on_error: Literal["raise", "restart"] = "raise",
    step_timeout: float = 60.0,
    eval_envs: int | None = None,
    training_envs: int | None = None,
    log_info: Sequence[str] = (),
) -> Evaluation:
    """Evaluate a policy in `episodes` episodes, numbered from 0, each with its own seed.

    env: as for make(), or a ready Env, which is made again from its source and options (its Recipe). Ports are
    evaluated in their Gymnasium reference, other KernelEnvs and those with params compiled. Episodes differ from those
    of a training run with the same seed.
    deterministic: True takes the most likely actions, False samples actions, reproducibly by seed.
    With several agents, the return of an episode is the mean over agents, and its length that of the longest.
    eval_envs: largest number of environments, see Evaluator. They play the episodes in rounds, episode i in environment
    i modulo their number, and are closed at the end in any case. The seed, the params and the random actions of an
    episode depend only on its number. So does its return, if reset(seed=...) determines an episode. All of the first
    `episodes` episodes count, so short ones are not favoured.
    training_envs: number of environments in the policy's training, see Evaluator.
    workers: a number of processes, or a headrace.Workers; None steps in this process. The results do not depend on it.
    frame_stack, time_limit, info_mask, params, env_kwargs, ignore, agent_info: as in training, see make() and Trainer;
    wrapper: make()'s wrappers. If params or agent_info have an entry for each environment, episode i has that of
    environment i modulo their number.
    most_steps: longer episodes are cut off at this step, and counted. None for the environment's own time limit or
    27,000, whichever is larger. reference: whether ports are evaluated in Gymnasium's environment; otherwise they are
    compiled.
    watch: called with the number of ended episodes and of steps, every few steps, and before each step of environments
    that are not compiled.
    log_info: names of numbers in the info of an episode's last step, for Evaluation.infos: of environments that are
    not compiled, with one agent.
    on_error, step_timeout: see make(). With "restart", an episode that an error ends is replaced by another one.
    Raises Stopped if watch returns True; TypeError for an Env that cannot be made again; ValueError for workers,
    eval_envs or log_info with compiled environments, or a missing agent_info.
    """
    options: Json = {"frame_stack": frame_stack, "time_limit": time_limit, "info_mask": info_mask, "params": params}
    options |= {"env_kwargs": env_kwargs, "wrapper": wrapper, "ignore": ignore, "agent_info": agent_info}
    options |= {"on_error": on_error, "step_timeout": step_timeout, "workers": workers, "reference": reference}
    options["log_info"] = log_info
    with closing(Evaluator(env, eval_envs=eval_envs, training_envs=training_envs, **options)) as evaluator:
        return evaluator.evaluate(policy, episodes, seed, deterministic, most_steps, watch)


class Evaluator:
    """Evaluates several times in the same environments, which are made at the first evaluation and kept until close().

    env and the other arguments: as for evaluate().
    eval_envs: largest number of environments. None for the number of the training (training_envs, or a ready Env's),
    else FEW_ENVS, or the number of workers. There is a compiled environment for each episode, and also a reference of a
    port for each if eval_envs is None.
    With a list of functions, function i modulo their number makes environment i, and the number of environments is a
    multiple of theirs. If the list is longer than training_envs, evaluations use the functions beyond it, with at most
    one environment each.
    """

    def __init__(
        self,
        env: Env | Source | Recipe,
        *,
        eval_envs: int | None = None,
        training_envs: int | None = None,
        workers: int | Workers | None = None,
        frame_stack: int = 1,
        time_limit: int | None = None,
        info_mask: bool = False,
        params: Settings | None = None,
        env_kwargs: Settings | None = None,
        wrapper: Wrappers = (),
        ignore: Sequence[str] = (),
        agent_info: Any = None,
        reference: bool = True,
        on_error: Literal["raise", "restart"] = "raise",
        step_timeout: float = 60.0,
        log_info: Sequence[str] = (),
    ) -> None:
        self.source, remade = recipe_of(env)
        self._options: Json = {
            "on_error": on_error,
            "step_timeout": step_timeout,
            **remade,
            **({"frame_stack": frame_stack} if frame_stack != 1 else {}),
            **({"time_limit": time_limit} if time_limit is not None else {}),
            **({"ignore": ignore} if ignore else {}),
            **({"wrappers": wrapper} if wrapper else {}),
            **({"env_kwargs": env_kwargs} if env_kwargs else {}),
            **({"info_mask": True} if info_mask else {}),
        }
        self._params, self._agent_info, self._workers = params or remade.get("params"), agent_info, workers
        kernel = kernel_class(self.source)
        port = is_port(self.source)
        self._compiled = kernel is not None and (not port or not reference or bool(self._params))
        self._vector = kernel is None and envs.comes_as_vector(self.source)
        if (self._compiled or self._vector) and workers is not None:
            what = "compiled" if self._compiled else "as a vector of environments"
            name = envs.spec(self.source).name
            raise ValueError(f"{name} is evaluated {what}, without workers: leave {workers=} out")
        if log_info and self._compiled and reference:
            name = envs.spec(self.source).name
            raise ValueError(f"{name} is evaluated compiled, and gives no infos: leave log_info={[*log_info]} out")
        self._log_info = () if self._compiled else tuple(log_info)
        if training_envs is None and isinstance(env, Env):
            training_envs = env.num_copies
        self.source, self._most = self._at_most(eval_envs, training_envs, port)
        self._env: Env | None = None
        self._carried: tuple[Carried, ...] = ()  # statistics that its wrappers have learned

    def _at_most(self, eval_envs: int | None, training_envs: int | None, port: bool) -> tuple[Source, int | None]:
        """The source of environments, and their largest number; None for one per episode."""
        name = envs.spec(self.source).name
        if eval_envs is not None and not (isinstance(eval_envs, Integral) and eval_envs >= 1):
            raise ValueError(f"eval_envs must be a whole number of environments, 1 or more, got {eval_envs!r}")
        if self._compiled or (port and eval_envs is None):
            if eval_envs is not None:
                how = "compiled, an environment for each episode"
                raise ValueError(f"{name} is evaluated {how}: leave {eval_envs=} out")
            return self.source, None
        own = self._workers
        processes = own if isinstance(own, int) else 1 if own is None else own.number
        kinds = kinds_of(self.source)
        most = eval_envs or max(training_envs or max(FEW_ENVS, len(kinds)), processes)
        if training_envs and len(kinds) > training_envs:
            left = list(kinds[training_envs:])
            return left, min(most, len(left))
        if most < len(kinds):
            raise ValueError(
                f"{name} is a list of {len(kinds)}, of which evaluations have one environment each at least: give "
                f"{eval_envs=} as a multiple of {len(kinds)}"
            )
        return self.source, most // len(kinds) * len(kinds)

    @users_code()
    @torch_threads(1)  # the batches are too small for several threads
    def evaluate(
        self,
        policy: Policy,
        episodes: int = 100,
        seed: int = 0,
        deterministic: bool = True,
        most_steps: int | None = None,
        watch: Watch | None = None,
    ) -> Evaluation:
        """See headrace.evaluate."""
        check_policy(policy, "evaluate")
        if not (isinstance(episodes, Integral) and episodes >= 1):
            raise ValueError(f"an evaluation needs a whole number of episodes, 1 or more, got {episodes!r}")
        started = perf_counter()
        with same_folder():
            made = self.prepare(policy, episodes)
            tell_learned(made.name, made.learned, carried=bool(self._carried))
            found = played(
                policy, made, episodes, seed, deterministic, most_steps, watch, self._agent_info, self._log_info
            )
            return replace(found, seconds=perf_counter() - started)

    def prepare(self, policy: Policy, episodes: int) -> Env:
        """The environments for `episodes` episodes. They are made if there are none, if their number does not fit, or
        if their wrappers' statistics differ from those that come with the policy."""
        own = carried(policy) if kernel_class(self.source) is None and not self._vector else ()
        if self._env is not None and self._env.learned and (not own or own != self._carried):
            self.close()
        self._carried = own
        number = episodes if self._most is None else min(episodes, self._most)
        other = 0 if self._env is None else number - self._env.num_copies
        if other > 0 or (other and self._most is None):
            self.close()
        if self._env is None:
            with same_folder():
                self._env = self._made(policy, number)
        return self._env

    def _made(self, policy: Policy, number: int) -> Env:
        options = {
            "device": next(policy.parameters()).device,
            "group_by": policy.groups if isinstance(policy, GroupedPolicy) else "spaces",
            **self._options,
        }
        if self._carried:
            options["wrappers"] = (*options.get("wrappers", ()), *self._carried)
        if self._params:
            options["params"] = {name: _repeated(value, number) for name, value in self._params.items()}
        if self._compiled or self._vector:
            return envs.make(self.source, number, **options)
        workers = self._workers
        workers = min(workers, number) if isinstance(workers, int) else workers
        backend = "inline" if workers is None else "auto"
        try:
            return envs.make(self.source, number, backend=backend, workers=workers, **options)
        except Exception as error:
            error.add_note(
                f"while making {number} environments for evaluations, which have theirs in addition to a training's: "
                "eval_envs is how many at most; of a list of functions, they have those beyond num_envs"
            )
            raise

    def close(self) -> None:
        """Close the environments. The next evaluation makes new ones."""
        env, self._env = self._env, None
        if env is not None:
            env.close()


def _repeated(value: Any, number: int) -> Any:
    """Repeat a list of values for `number` environments; a single value is returned as it is."""
    return [value[i % len(value)] for i in range(number)] if has_several(value) else value
