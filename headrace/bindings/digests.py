"""Digests of the plain functions that the kernels were written after, with all that they reach (core.closure).

Where tests/bindings/test_digests.py says that one differs: bring the kernels after the source, see that their tests
pass, and run `python tests/bindings/test_digests.py`, which writes the new ones.
"""

DIGESTS = {
    "actor_critic.act": "c855fb7658e0cc38",
    "actor_critic.value": "aa02aae8b29d6074",
    "actor_q.act": "f1f0688772b8e75f",
    "collector.steps": "4b4a8e357a6138a8",
    "ddpg.learn": "f0366a83dc22a400",
    "dqn.learn": "9ea6bba8ca992c60",
    "off_policy.learn_from_replay": "c3ca88d50b118a7f",
    "off_policy.steps": "fa32fbe1497d3a8a",
    "ppo.learn": "fe06bcd7d9bf36db",
    "q_network.act": "8a52c91ff2457844",
    "returns.explained_variance": "8ad7f1b4c3e2ae7b",
    "returns.gae": "e247cdd6ee26b408",
    "rng.uniform": "3a43ee4272bf5557",
    "rnn.recur": "b800c1f2a33c0d93",
    "sac.learn": "125c33e4c42d6c75",
    "td3.learn": "17041dd845710c38",
}
