"""Members that policies of Stable-Baselines3 have, and what to use instead."""

from __future__ import annotations

TENSORS = "model.policy takes tensors as they are: torch.as_tensor(observation), [N, ...]"
INSTEAD = {  # members of policies -> what to use instead
    **dict.fromkeys(
        ("save", "load"), "model.save(path) writes all; torch.save(model.policy.state_dict(), path) this alone"
    ),
    "obs_to_tensor": TENSORS,
    "predict_values": "policy.value(tensor) has the values of observations, [N]",
    "evaluate_actions": "policy.log_prob_entropy_value(tensor, actions) has log_prob, entropy and value",
    "get_distribution": "policy(tensor) is the pair of the distribution over actions and the values",
    "mlp_extractor": "the layers are policy.actor and policy.critic",
    "action_net": "the layer is policy.actor_out",
    "value_net": "the layer is policy.critic_out",
    "log_std": "it is policy.head.log_std",
    "optimizer": "it is model.algorithm.optimizer, or one of model.algorithm.optimizers",
    "net_arch": "it is policy.hidden",
    "activation_fn": "its name is policy.activation",
    **dict.fromkeys(("features_extractor", "pi_features_extractor", "vf_features_extractor"), "it is policy.encoder"),
    "set_training_mode": "policy.train(mode) is PyTorch's",
    **dict.fromkeys(("scale_action", "unscale_action"), "policy.predict() gives actions in the units of the space"),
    **dict.fromkeys(("q_net", "q_net_target"), "policy(tensor) has the Q-values [A, N]"),
    **dict.fromkeys(("critic", "critic_target", "actor_target"), "the critics are policy.critics"),
}
