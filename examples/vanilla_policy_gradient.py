"""An algorithm of your own: vanilla policy gradient with a baseline. Sutton et al. 2000.

    headrace train examples/vanilla_policy_gradient.py:VanillaPolicyGradient CartPole-v1

Headrace finds the config by its name, <Class>Config; its fields become flags, and their comments the help.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from headrace.algorithms.config_bases import OnPolicyConfig
from headrace.algorithms.on_policy import OnPolicy, Targets, gae_targets
from headrace.algorithms.reduce import mean_weights, normalized
from headrace.data.rollout import Rollout


@dataclass(frozen=True, kw_only=True)
class VanillaPolicyGradientConfig(OnPolicyConfig):
    """Settings. Those of OnPolicyConfig, such as gamma and hidden, come first."""

    num_steps: int = 32  # steps of each environment in a rollout
    learning_rate: float = 3e-3  # of Adam, at the start of training
    value_coef: float = 0.5  # weight of the value loss in the loss


class VanillaPolicyGradient(OnPolicy[VanillaPolicyGradientConfig]):
    """gradient = mean over steps of (return - value) * grad log pi(action | observation)."""

    name = "vanilla_policy_gradient"
    config = VanillaPolicyGradientConfig()

    def process(self, rollout: Rollout) -> Targets:
        """Discounted returns, bootstrapped at the rollout's end, and advantage = return - value."""
        return gae_targets(rollout, self.config.gamma, gae_lambda=1.0)

    def learn(self, rollout: Rollout, targets: Targets) -> dict[str, Tensor]:
        """One gradient step on all rows. Rows that are not valid have weight 0."""
        rows, inputs = self.policy.rows, self.policy.inputs(rollout)
        valid = rows(targets.valid)
        weight = mean_weights(valid)
        log_prob, _, value = self.policy.log_prob_entropy_value(inputs, rows(rollout.action))
        policy_loss = -(log_prob * normalized(rows(targets.advantage), valid)) @ weight
        value_loss = (value - rows(targets.returns)).square() @ weight
        (policy_loss + self.config.value_coef * value_loss).backward()
        self.optimizer.step(self.config.max_grad_norm)
        return {"policy_loss": policy_loss.detach(), "value_loss": value_loss.detach()}
