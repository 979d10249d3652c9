"""N compiled environments as a gymnasium.vector.VectorEnv, for training loops of other libraries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from headrace.core.text import shown
from headrace.core.types import Json, Settings
from headrace.envs.compiled.env import CompiledEnv

Output = Literal["numpy", "torch"]
Batch = Any  # np.ndarray or Tensor, by `output`
ROWS = 8  # steps that the rollout behind the outputs has: then its last row is copied to its first


class CompiledVectorEnv(VectorEnv):
    """The environments of a CompiledEnv of one agent, with the conventions of gymnasium.vector.SyncVectorEnv.

    Observations [N, ...] in the dtype of the space, rewards float32 [N], terminations and truncations bool [N].
    output: "numpy", or "torch" for tensors on the env's device. copy: whether outputs are copies, as those of
    SyncVectorEnv; otherwise they are views of the env's memory, which keep their values during the next step() and not
    longer. Observations are then of shape [N, F] with the strides of [F, N].

    infos: in SAME_STEP, where episodes end, `final_obs` (an object array of observations, None where no episode ended;
    with "torch" a batch [N, ...], of which only those rows count), `final_info`, and their masks. episode_statistics:
    whether they also have `episode`, with r (return), l (length) and t (seconds), [N] each, and its mask `_episode`;
    `final_info` has it, too.
    Actions outside their space raise ValueError; those of a Box are clipped. On a GPU they are not checked.

    Raises ValueError for several agents, other autoreset modes, or NumPy with environments that are on a GPU.
    """

    def __init__(
        self,
        env: CompiledEnv,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        output: Output = "numpy",
        copy: bool = True,
        episode_statistics: bool = False,
    ) -> None:
        self.env, self.copy, self.output, self._statistics = env, copy, output, episode_statistics
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self._check()
        self.num_envs = env.num_envs
        self.single_observation_space, self.single_action_space = env.observation_space, env.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {"render_modes": [], "autoreset_mode": self.autoreset_mode}
        self._rollout = rollout = env.rollout(ROWS, env.columns())
        give: Callable[[Tensor], Batch] = (lambda x: x.numpy()) if output == "numpy" else (lambda x: x)
        # views, made once: making one costs as much as copying a column of a thousand environments
        self._observation = [give(rollout.observation[t]) for t in range(ROWS + 1)]
        self._valid = [rollout.valid[t] for t in range(ROWS + 1)]
        columns = ("reward", "terminated", "truncated")
        self._outcome = [[give(getattr(rollout, name)[t]) for name in columns] for t in range(ROWS)]
        self._action = [rollout.action[t] for t in range(ROWS)]
        self._action_arrays = [x.numpy() for x in self._action] if env.device.type == "cpu" else []
        self._row = -1  # of the newest observation; -1 before the first reset
        self._began = np.zeros(self.num_envs)  # s, of the present episodes
        self._bounds = _bounds(self.single_action_space)

    def _check(self) -> None:
        if self.env.num_agents > 1:
            raise ValueError(
                f"{self.env.name} has {self.env.num_agents} agents, and a VectorEnv is for one: use make()"
            )
        if self.autoreset_mode is AutoresetMode.DISABLED:
            raise ValueError("autoreset_mode is DISABLED: compiled environments have NEXT_STEP and SAME_STEP")
        if self.output not in ("numpy", "torch"):
            raise ValueError(f"output must be 'numpy' or 'torch', got {self.output!r}")
        if self.output == "numpy" and self.env.device.type != "cpu":
            raise ValueError(
                f"the environments are on {self.env.device}, where NumPy has no arrays: use output='torch'"
            )

    def reset(self, *, seed: int | None = None, options: Json | None = None) -> tuple[Batch, Json]:
        """Begin new episodes: all of a seed from the first one on, or, without a seed, the next ones.

        seed: environment i draws by (seed, i), so that it needs no list of seeds.
        options: `reset_mask`, bool [N], for the environments to reset. Others keep their episode and observation.
        Raises TypeError, ValueError for other seeds and options.
        """
        if seed is not None and not isinstance(seed, int | np.integer):
            raise TypeError(f"seed must be one whole number, from which all environments draw, got {shown(seed, 60)}")
        super().reset(seed=None if seed is None else int(seed))
        mask = self._reset_mask(options, seed)
        if self._row < 0 and seed is None:
            seed = int(self.np_random.integers(2**32))
        if seed is not None:
            self.env.reset(self._rollout, int(seed))
            self._row = 0
        else:
            self._begin(mask)
        self._began[mask.cpu().numpy()] = perf_counter()
        return self._given(self._observation[self._row]), {}

    def _reset_mask(self, options: Json | None, seed: int | None) -> Tensor:
        if unknown := set(options or ()) - {"reset_mask"}:
            raise ValueError(f"compiled environments take the option reset_mask alone, got {', '.join(unknown)}")
        if not options:
            return torch.ones(self.num_envs, dtype=torch.bool, device=self.env.device)
        mask = torch.as_tensor(options["reset_mask"], device=self.env.device)
        if mask.dtype != torch.bool or mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(f"reset_mask must be bool [{self.num_envs}] with a True in it, got {shown(mask, 60)}")
        if seed is not None or self._row < 0:
            raise ValueError("reset_mask is for environments whose first episode has begun, and goes without a seed")
        return mask

    def step(self, actions: Batch) -> tuple[Batch, Batch, Batch, Batch, Json]:
        """A step of all environments: observations, rewards, terminations, truncations, infos.

        Raises RuntimeError before the first reset(), ValueError for actions of another shape or outside their space.
        """
        if self._row < 0:
            raise RuntimeError("step() before reset(): call reset() first")
        t = self._next_row()
        self._act(t, actions)
        self.env.step(self._rollout, t)
        self._row = t + 1
        outcome = [self._given(x) for x in self._outcome[t]]
        infos: Json = {} if bool(self._valid[t + 1].all()) else self._end(t + 1)
        return self._given(self._observation[self._row]), *outcome, infos  # type: ignore[return-value]

    def _next_row(self) -> int:
        """The row to step from: where the rollout is full, its last row is copied to its first."""
        if self._row == ROWS:
            self._rollout.continue_from(self._rollout)
            self._row = 0
        return self._row

    def _act(self, t: int, actions: Batch) -> None:
        """Write actions into row t."""
        target = self._action[t]
        if isinstance(actions, Tensor) and self.env.device.type != "cpu":
            if actions.shape != target.shape:
                raise ValueError(f"actions must be of shape {list(target.shape)}, got {list(actions.shape)}")
            target.copy_(actions)
            return
        array = actions.detach().cpu().numpy() if isinstance(actions, Tensor) else np.asarray(actions)
        if array.shape != tuple(target.shape):
            raise ValueError(f"actions must be of shape {list(target.shape)}, got {list(array.shape)}")
        self._check_actions(array)
        if self._action_arrays:
            np.copyto(self._action_arrays[t], array, casting="unsafe")
        else:
            target.copy_(torch.from_numpy(np.ascontiguousarray(array)))

    def _check_actions(self, actions: np.ndarray) -> None:
        """Raise ValueError for actions that a kernel would index its memory by."""
        if self._bounds is None:
            return
        low, high = self._bounds
        if actions.dtype.kind not in "iu" or (actions.min(0) < low).any() or (actions.max(0) > high).any():
            space = self.single_action_space
            raise ValueError(f"actions must be whole numbers of {space}, got {shown(actions, 80)} of {actions.dtype}")

    def _end(self, row: int) -> Json:
        """The infos of episodes that ended with the observation in a row; in SAME_STEP begin the next ones."""
        ended = ~self._valid[row]
        (places,) = torch.nonzero(ended, as_tuple=True)
        numbers, mask = places.cpu().numpy(), self._as_output(ended)
        infos = self._episodes(places, numbers, mask) if self._statistics else {}
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            infos |= {"final_info": dict(infos), "_final_info": mask}
            infos |= {"final_obs": self._final(row, numbers), "_final_obs": mask}
            self._begin(ended)
        return infos

    def _episodes(self, places: Tensor, numbers: np.ndarray, mask: Batch) -> Json:
        """The statistics of the episodes of some environments, which have ended."""
        returns, lengths = self.env.target.running_episodes(places)
        now = perf_counter()
        seconds = torch.from_numpy(now - self._began[numbers])
        self._began[numbers] = now
        parts = {"r": returns, "l": lengths, "t": seconds}
        return {"episode": {name: self._spread(x, places) for name, x in parts.items()}, "_episode": mask}

    def _spread(self, values: Tensor, places: Tensor) -> Batch:
        """[K] values of some environments as [N], zero elsewhere."""
        full = torch.zeros(self.num_envs, dtype=values.dtype, device=places.device)
        full[places] = values.to(places.device)
        return self._as_output(full)

    def _final(self, row: int, numbers: np.ndarray) -> Batch:
        if self.output == "torch":
            return self._observation[row].clone()
        found = np.full(self.num_envs, None, dtype=object)
        for number in numbers:
            found[number] = self._observation[row][number].copy()
        return found

    def _begin(self, which: Tensor) -> None:
        """Begin the next episode of the environments `which`, bool [N]; others keep episode and observation."""
        t = self._next_row()
        rollout, running = self._rollout, self._valid[t] | which
        self._action[t].copy_(self._action[t - 1])  # any of the space: what they lead to is undone
        self.env.target.restart(rollout, t, which)
        shape = (-1, *[1] * (rollout.observation.dim() - 2))
        rollout.observation[t + 1].copy_(
            torch.where(which.view(shape), rollout.observation[t + 1], rollout.observation[t])
        )
        self._valid[t + 1].copy_(running)
        self._row = t + 1

    def _as_output(self, x: Tensor) -> Batch:
        return x.numpy() if self.output == "numpy" else x

    def _given(self, x: Batch) -> Batch:
        """An output as the caller gets it."""
        if not self.copy:
            return x
        return x.copy() if self.output == "numpy" else x.clone(memory_format=torch.contiguous_format)

    @property
    def params(self) -> Settings:
        """The environments' parameters that are not the defaults."""
        return self.env.params

    @params.setter
    def params(self, values: Settings) -> None:
        """Raises AttributeError."""
        raise AttributeError(f"params cannot be set: make them with make_vec(..., params={shown(values)})")

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Copies of a field of each environment's State or Params, or of an attribute of the class."""
        state = self.env.target.state()
        if name in state:
            return tuple(state[name].cpu().numpy())
        defaults = {param.name: param.default for param in self.env.ir.params}
        if name in defaults:
            return tuple(np.broadcast_to(self.env.params.get(name, defaults[name]), (self.num_envs,)))
        own = self if hasattr(self, name) else self.env.factory
        if not hasattr(own, name):
            fields = ", ".join([*state, *defaults])
            raise AttributeError(f"{self.env.name} has no attribute {name!r}; its state and parameters are {fields}")
        return (getattr(own, name),) * self.num_envs

    def set_attr(self, name: str, values: Sequence[Any] | Any) -> None:
        """Set a parameter (see headrace.envs.base.Env.set_params) or a field of State: one value, or one for each
        environment. The observation follows with the next step.

        Raises AttributeError for anything else.
        """
        state, params = self.env.target.state(), [param.name for param in self.env.ir.params]
        if name in params:
            numbers = np.asarray(values)
            alike = numbers.ndim and (numbers == numbers[0]).all()
            self.env.set_params(**{name: numbers[0] if alike else values})
            return
        if name not in state:
            raise AttributeError(
                f"{name!r} is no parameter of {self.env.name} ({', '.join(params) or 'it has none'}), and no field of "
                f"its state ({', '.join(state)})"
            )
        given = torch.as_tensor(np.asarray(values), device=self.env.device).to(state[name].dtype)
        state[name] = given.expand_as(state[name]) if given.dim() < state[name].dim() else given
        if state[name].shape[:1] != (self.num_envs,):
            raise ValueError(f"{name} has {len(given)} values: give one, or one for each of {self.num_envs}")
        self.env.target.set_state(state)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """An attribute of each environment; where it is a static function of the class, what it returns."""
        found = self.get_attr(name)
        return tuple(x(*args, **kwargs) if callable(x) else x for x in found)

    def close_extras(self, **kwargs: Any) -> None:
        self.env.close()


def _bounds(space: Any) -> tuple[Any, Any] | None:
    """The smallest and the largest actions; None for a Box, which is clipped."""
    if isinstance(space, Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    if isinstance(space, Box):
        return None
    return 0, 1  # MultiBinary
