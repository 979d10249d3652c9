"""Base class of policies: actions for a batch of environments, and the likelihood of given actions for learning."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from inspect import Parameter, signature
from typing import Any, NamedTuple, Self, TypeGuard, TypeVar

import torch
from torch import Tensor, nn

from headrace.core.fused import fused
from headrace.core.packages import of_headrace
from headrace.core.text import shown
from headrace.core.types import Json
from headrace.data.rollout import Column, Columns, Rollout, flatten, sequences, tree_map
from headrace.data.spaces import Space, alike, from_json, is_image, leaves, to_json
from headrace.policies.numpy_io import batch_size, to_action, to_batch, to_state
from headrace.policies.unknown_members import delete, look_up

P = TypeVar("P", bound=nn.Module)
SPACES = ("observation_space", "action_space")
OFF: tuple[Any, ...] = (None, False, 0, "", "none", [], {})  # values that switch a setting off


# names in a class that do not affect what its policies compute
NOT_COMPUTING = {"config", "__module__", "__qualname__", "__doc__", "__annotations__", "__dict__"}
NOT_COMPUTING |= {"__static_attributes__", "__firstlineno__", "__weakref__"}


class PolicyOutput(NamedTuple):
    """Output of act() for N environments."""

    action: Tensor  # [N, ...] in the action column's dtype
    log_prob: Any  # Tensor [N]; None from policies of algorithms that do not use it
    value: Any  # Tensor [N], in units of return; None as log_prob
    rnn_state: Any  # to be given to act() at the next step; None for a policy that is not recurrent

    def first(self, rows: int) -> PolicyOutput:
        """The output for the first `rows` environments."""
        return PolicyOutput(*(tree_map(lambda x: x[:rows], part) for part in self))


class LogProbEntropyValue(NamedTuple):
    """Log-likelihood of given actions, entropy and value; differentiable."""

    log_prob: Tensor  # [B]
    entropy: Tensor  # [B]
    value: Tensor  # [B]


def inference_block(observation_space: Space, recurrent: str = "none") -> int:
    """Rows in one block of inference: 64, or 16 for image observations and recurrent policies.

    act() and value() pad a batch to whole blocks. BLAS and vectorised functions use other routines for the remainder of
    a batch. Without padding the last bits of an output would depend on the size of the batch.
    """
    images = any(is_image(leaf) for _, leaf in leaves(observation_space))
    return 16 if images or recurrent != "none" else 64


class Policy(nn.Module):
    """Base class of all policies.

    Randomness is an argument: `random`, uniform draws in [0, 1) of shape [N, num_draws]. The same draws give the same
    actions on every device and inside a CUDA graph, and an exported policy needs no generator.
    Actions of Discrete and MultiDiscrete spaces are the numbers of the space: they count from its `start`.
    A user's own class defines act() and value(), and forward() or log_prob_entropy_value(), and sets the two spaces and
    num_draws. A recurrent one also sets `recurrent` to the kind of its cell, sets `state_width`, takes and returns
    states [N, state_width] in act(), and defines inputs(). A state is zeros at the beginning of an episode.
    Policies that explore in addition to their distribution have a tensor `exploration`, [N] or [1], which their
    algorithm writes: the probability of a random action (DQN), or the standard deviation of noise in half ranges (DDPG,
    TD3). It belongs to the training: act() explores, predict() and evaluations do not.
    """

    observation_space: Space
    action_space: Space
    num_draws: int  # uniform draws for one action
    samples: bool = True  # whether actions are drawn from a distribution; otherwise only exploration is random
    sequence_length: int = 1  # consecutive steps of one environment that follow each other in rows()
    block: int = 1  # act() and value() pad a batch to a multiple of this number of rows
    recurrent: str = "none"  # kind of RNN cell: "none", "gru", "lstm"
    use_expln: bool = False  # see heads.py
    use_sde: bool = False  # whether its noise is a function of the state: see heads.py
    state_width: int = 0  # numbers in the recurrent state of an environment; a recurrent policy has to set it
    wrapper_statistics: Sequence[Json] = ()  # of wrappers of the environments of its training: envs.gym.learned
    _arguments: dict[str, Any] | None = None  # of the constructor, for config()

    __delattr__ = delete

    def __getattr__(self, name: str) -> Any:
        """Look up a parameter, buffer, module, or another library's name of a member: see unknown_members.look_up()."""
        return look_up(self, name)

    def _keep(self, arguments: dict[str, Any]) -> None:
        """Keep the arguments of a constructor, given as its locals()."""
        given = {name: x for name, x in arguments.items() if name not in ("self", "seed", "__class__")}
        self._arguments = {name: list(x) if isinstance(x, tuple) else x for name, x in given.items()}

    def act(self, observation: Any, rnn_state: Any, random: Tensor | None) -> PolicyOutput:
        """Actions for N environments: sampled with `random` [N, num_draws], or the most likely ones for None.

        rnn_state: [N, state_width] as the call before returned it, zeros at the start of an episode; None for a policy
        that is not recurrent, and at the first step of predict().
        """
        raise NotImplementedError

    def act_without_exploration(self, observation: Any, rnn_state: Any, random: Tensor | None) -> PolicyOutput:
        """act() for users of the policy: actions are sampled from its distribution, without training's exploration."""
        return self.act(observation, rnn_state, random if self.samples else None)

    def log_prob_entropy_value(self, inputs: Any, action: Tensor) -> LogProbEntropyValue:
        """log_prob, entropy and value of B actions, for B rows of inputs() (observations, unless the policy is
        recurrent). Differentiable. By default from forward(inputs): the distribution over actions, and the value."""
        distribution, value = self(inputs)
        return LogProbEntropyValue(distribution.log_prob(action), distribution.entropy(), value)

    def columns(self) -> dict[str, Column | Columns]:
        """Columns of the rollout that inputs() needs in addition to the observation. A recurrent policy has rnn_state,
        the state [N, state_width] before each step, which is zeros at the beginning of an episode."""
        return {} if self.recurrent == "none" else {"rnn_state": Column((self.state_width,))}

    def rows(self, column: Any) -> Any:
        """A column [T, N, ...] as rows [T * N, ...], in the order of inputs().

        With a sequence_length above 1 the rows of a sequence, consecutive steps of one environment, follow each other.
        """
        return flatten(column) if self.sequence_length == 1 else sequences(column, self.sequence_length)

    def inputs(self, rollout: Rollout) -> Any:
        """Inputs of log_prob_entropy_value() for each row of a rollout, [T * N, ...]: observations.

        Another class may return a dict, a tuple, a NamedTuple or a Group of tensors, nested ones too, each with all
        rows as its first dimension, as rows() gives them. log_prob_entropy_value() is given the same kind of object,
        with the rows of a minibatch. A recurrent policy returns observation, rnn_state and valid of each row.
        """
        return self.rows(rollout.observation[: rollout.num_steps])

    def value(self, observation: Any, rnn_state: Any = None) -> Tensor:
        """Value of N observations, [N], in units of return."""
        raise NotImplementedError

    def value_scale(self) -> Tensor | float:
        """Units of return in one unit of the critic's output: value losses are divided by its square."""
        return 1.0

    def evaluate_rollout(self, rollout: Rollout) -> LogProbEntropyValue:
        """log_prob_entropy_value() of a whole rollout, [T, N] each. For the policy that collected it, log_prob and
        value equal the collected ones."""
        evaluation = self.log_prob_entropy_value(self.inputs(rollout), self.rows(rollout.action))
        parts = (-1, rollout.num_envs, self.sequence_length)
        return LogProbEntropyValue(*(x.view(parts).transpose(1, 2).flatten(0, 1) for x in evaluation))

    def bootstrap_value(self, rollout: Rollout) -> Tensor:
        """Value of the observation after a rollout's last step, [N]. A recurrent policy computes its state by act() for
        the last step, from the collected state before it."""
        if "rnn_state" not in rollout.columns:
            return self.value(rollout.observation[-1])
        last = rollout.num_steps - 1
        before = tree_map(lambda column: column[last], rollout.rnn_state)
        after = self.act(rollout.observation[last], before, None).rnn_state
        valid = rollout.valid[last]
        kept = tree_map(lambda x: x.masked_fill(~valid.view(-1, *[1] * (x.dim() - 1)), 0), after)
        return self.value(rollout.observation[-1], kept)

    def update_statistics(self, rollout: Rollout, returns: Tensor) -> None:
        """Update the normalisers' statistics with the valid rows of a rollout and the critic's targets, returns [T, N].

        Called once per iteration, after learning.
        """

    def initial_state(self, num_envs: int) -> Any:
        """Recurrent state at the start of an episode, zeros; None for a policy without one."""
        return next(self.parameters()).new_zeros(num_envs, self.state_width) if self.state_width else None

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.parameters()).device

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        generator: torch.Generator | None = None,
    ) -> tuple[Any, Any]:
        """Predict actions for observations in NumPy, and the next recurrent state, as Stable-Baselines3's predict().

        observation: one, or a batch; a dict of arrays for a Dict space. Returns actions in the action space's dtype and
        bounds, [...] for one observation or [N, ...] for a batch, and the next state. state: the one that the previous
        call returned, float32 [N, state_width], N = 1 for one observation; None at the start of an episode, and always
        for a policy that is not recurrent. episode_start: bool [N], True where an episode begins; the recurrent state
        is then initial_state(). deterministic: True for the most likely action; False to sample with `generator` (None
        for torch's default). Policies without a distribution, those of DQN, PQN, DDPG and TD3, act the same in both
        cases. Raises ValueError for an observation or a state of another shape, TypeError for an episode_start that is
        no array.
        """
        continues = episode_start is None or (state is None and type(episode_start) is not bool)
        if continues and (one := self.act_on_one(observation, state, deterministic, generator)) is not None:
            return one  # type: ignore[no-any-return]
        with torch.no_grad():
            device = self.device
            batch, single = to_batch(self.observation_space, observation, device)
            rows = batch_size(batch)
            state = to_state(state, episode_start, (rows, self.state_width), device)
            if deterministic:
                action, after = self.most_likely(batch, state)
            else:
                random = torch.rand(rows, self.num_draws, generator=generator).to(device)
                action, _, _, after = self.act_without_exploration(batch, state, random)
        action = to_action(self.action_space, action.detach().cpu().numpy(), single)
        return action, None if after is None else after.detach().cpu().numpy()

    @fused("policy.act_on_one", "headrace.bindings.collecting.acting_on_one")
    def act_on_one(
        self, observation: Any, state: Any, deterministic: bool, generator: torch.Generator | None
    ) -> tuple[Any, Any] | None:
        """predict() for one observation as a NumPy array, in one call and with the same bits; None if that is not
        possible."""
        return None

    def most_likely(self, observation: Any, rnn_state: Any) -> tuple[Any, Any]:
        """The most likely actions for N environments, and the next recurrent state, from act() without draws."""
        output = self.act(observation, rnn_state, None)
        return output.action, output.rnn_state

    def config(self) -> dict[str, Any]:
        """Arguments of the constructor, as JSON: from_config() builds a policy of the same architecture."""
        if self._arguments is None:
            raise NotImplementedError(f"{type(self).__name__} needs a config() with its constructor's arguments")
        return {name: to_json(x) if isinstance(x, Space) else x for name, x in self._arguments.items()}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Make a policy from config(), with the initial weights of seed 0; load_state_dict() loads others.

        Arguments that an earlier version's config does not have get their defaults. Raises ValueError for an argument
        that this version does not have, unless it was off."""
        named = {name: from_json(config[name]) for name in SPACES}
        known = signature(cls).parameters
        given = {name: value for name, value in config.items() if name in known or value not in OFF}
        given.pop("policy", None)
        if unknown := [name for name in given if name not in known] if not _takes_any(known) else []:
            name = unknown[0]
            raise ValueError(f"it has a {cls.__name__} with {name}={given[name]!r}, an argument that it has not here")
        return cls(**given | named)


def difference(kind: type[Policy], config: dict[str, Any], saved: dict[str, Any]) -> str:
    """The first argument in which the config() of two policies of a class differs; empty if none does. An argument that
    one of them does not have counts as its default."""
    known = signature(kind).parameters
    defaults = {name: _plain(x.default) for name, x in known.items() if x.default is not Parameter.empty}
    for name in {**config, **saved}:
        mine, other = (_plain(each.get(name, defaults.get(name))) for each in (config, saved))
        if name not in config and name not in known and other in OFF:
            continue
        if not _covers(mine, other) if name in SPACES else mine != other:
            return f"{name} {shown(other, 60)}, not {shown(mine, 60)}"
    return ""


def _covers(mine: Any, other: Any) -> bool:
    """Tell whether a space's JSON has all entries of another one. An earlier version may have written fewer."""
    if isinstance(mine, dict) and isinstance(other, dict):
        return all(name in mine and _covers(mine[name], value) for name, value in other.items())
    if isinstance(mine, list) and isinstance(other, list):
        return len(mine) == len(other) and all(map(_covers, mine, other))
    return bool(mine == other)


def _plain(value: Any) -> Any:
    """Convert a value to JSON's types, as a manifest has them."""
    return json.loads(json.dumps(value, default=str))


def _takes_any(known: Mapping[str, Parameter]) -> bool:
    return any(x.kind is Parameter.VAR_KEYWORD for x in known.values())


def check_policy(policy: object, function: str) -> None:
    """Raise TypeError, naming what to pass instead, for an object that does not act as a Policy. function: the function
    that takes it."""
    if hasattr(policy, "act"):
        return
    hint = "; headrace.load(folder) reads one" if isinstance(policy, str | os.PathLike) else ""
    hint = "; give its .policy" if hasattr(getattr(policy, "policy", None), "act") else hint
    raise TypeError(f"{function}() takes a policy, got {shown(policy)}{hint}")


def spaces_to_see(policy: Policy, given: Space) -> tuple[Space, Space]:
    """A policy's observation and action space. The former includes the members that only its critic sees, if `given`
    does."""
    whole = getattr(policy, "critic_space", policy.observation_space)
    return (whole if alike(whole, given) else policy.observation_space), policy.action_space


def kind_of(policy: nn.Module) -> type:
    """The class whose methods a policy has: its own class, or the class of Headrace from which that is derived without
    overriding a method except config()."""
    for kind in type(policy).__mro__:
        if of_headrace(kind):
            return kind
        if vars(kind).keys() - NOT_COMPUTING:
            break
    return type(policy)


def is_kind(policy: nn.Module, kind: type[P]) -> TypeGuard[P]:
    """True if kind_of() a policy is this class."""
    return kind_of(policy) is kind
