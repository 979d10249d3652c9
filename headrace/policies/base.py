"""What a policy owes: decisions for a batch of environments, and their likelihood again when learning."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from headrace.data.rollout import Column, Columns, Rollout, flatten, tree_map
from headrace.data.spaces import Space, from_json, is_image, leaves
from headrace.policies.numpy_io import batch_size, to_action, to_batch


class PolicyOutput(NamedTuple):
    """What a policy decides for N environments."""

    action: Tensor  # [N, ...] in the action column's dtype
    log_prob: Any  # Tensor [N]; None from a policy whose algorithm does not ask for it
    value: Any  # Tensor [N], in units of return; None likewise
    rnn_state: Any  # what the policy wants back at the next step; None for one without memory

    def first(self, rows: int) -> PolicyOutput:
        """The output for the first `rows` environments."""
        return PolicyOutput(*(tree_map(lambda x: x[:rows], part) for part in self))


class LogProbEntropyValue(NamedTuple):
    """How likely given actions are, with gradients."""

    log_prob: Tensor  # [B]
    entropy: Tensor  # [B]
    value: Tensor  # [B]


def inference_block(observation_space: Space, recurrent: str = "none") -> int:
    """Rows in one block of inference: 64, or 16 for image observations and recurrent policies.

    act() and value() pad a batch to whole blocks. BLAS and vectorised functions compute the remainder of a batch by
    other routines, so without padding the last bits of an output would change with the size of the batch.
    """
    images = any(is_image(leaf) for _, leaf in leaves(observation_space))
    return 16 if images or recurrent != "none" else 64


class Policy(nn.Module):
    """Base of all policies. Knows nothing of time, processes or environments.

    The randomness of a decision comes in as `noise`, uniform draws in [0, 1) of shape [N, num_draws]: so the same draws
    give the same actions on every device and inside a captured graph, and an exported policy needs no generator.
    Actions of Discrete and MultiDiscrete spaces are the space's own numbers: they count from its `start`.
    Policies that explore by more than their own distribution have a tensor `exploration`, [N] or [1], which their
    algorithm writes: the share of random actions (DQN), the deviation of noise in half ranges (DDPG, TD3).
    """

    observation_space: Space
    action_space: Space
    num_draws: int  # uniform draws one decision uses
    sequence_length: int = 1  # how many rows of rows() belong together, one after another in one environment
    block: int = 1  # act() and value() pad a batch to a multiple of this number of rows
    recurrent: str = "none"  # what remembers earlier observations: "gru", "lstm"

    def act(self, observation: Any, rnn_state: Any, random: Tensor | None) -> PolicyOutput:
        """Decide for N environments: sampled with `noise` [N, num_draws], or the most likely action without."""
        raise NotImplementedError

    def log_prob_entropy_value(self, inputs: Any, action: Tensor) -> LogProbEntropyValue:
        """log_prob, entropy and value of B rows as inputs() gives them (of a policy without memory: observations) and
        B actions, differentiable."""
        raise NotImplementedError

    def columns(self) -> dict[str, Column | Columns]:
        """Columns that inputs() needs beside the observation, such as memory [N, W] as it was before each step."""
        return {}

    def rows(self, column: Any) -> Any:
        """A column [T, N, ...] as rows [T * N, ...], in the order in which inputs() has them."""
        return flatten(column)

    def inputs(self, rollout: Rollout) -> Any:
        """What evaluate() takes of a rollout, row by row: observations."""
        return self.rows(rollout.observation[: rollout.num_steps])

    def value(self, observation: Any, rnn_state: Any = None) -> Tensor:
        """Value of N observations, [N], in units of return."""
        raise NotImplementedError

    def value_scale(self) -> Tensor | float:
        """Units of return in one unit of the critic's output: losses of values are counted in these."""
        return 1.0

    def evaluate_rollout(self, rollout: Rollout) -> LogProbEntropyValue:
        """evaluate() of a whole rollout, [T, N] each: log_prob equals what was collected."""
        raise NotImplementedError

    def update_statistics(self, rollout: Rollout, returns: Tensor) -> None:
        """Move the normalisers' statistics by the valid rows of a rollout and the returns [T, N] the critic learned.

        Called once per iteration, after learning.
        """

    def initial_state(self, num_envs: int) -> Any:
        """Memory at the start of an episode; None for a policy without."""
        return None

    @torch.no_grad()
    def predict(
        self,
        observation: Any,
        state: Any = None,
        deterministic: bool = True,
        generator: torch.Generator | None = None,
    ) -> tuple[Any, Any]:
        """Actions for observations in NumPy, and the recurrent state after them, as Stable-Baselines3's predict().

        observation: one, or a batch of them; a Dict of arrays for a Dict space. Gives actions of the action space in
        its dtype, inside its bounds: [...] or [N, ...] as the observations were. state: what the call before gave, None
        at the beginning of an episode; None throughout for a policy that is not recurrent.
        deterministic: the most likely action; else one drawn with `generator` (torch's own where None).
        Raises ValueError for an observation of another shape than the space's.
        """
        device = next(self.parameters()).device
        batch, single = to_batch(self.observation_space, observation, device)
        random = None
        if not deterministic:
            random = torch.rand(batch_size(batch), self.num_draws, generator=generator).to(device)
        output = self.act(batch, state, random)
        return to_action(self.action_space, output.action, single), output.rnn_state

    def config(self) -> dict[str, Any]:
        """What the policy is made of, as JSON can hold it: from_config() builds one that its weights fit."""
        raise NotImplementedError

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The policy that config() described, with weights of seed 0: load_state_dict() brings the others."""
        named = {name: from_json(config[name]) for name in ("observation_space", "action_space")}
        return cls(**{name: value for name, value in config.items() if name != "policy"} | named)
