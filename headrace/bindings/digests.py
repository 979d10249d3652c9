"""Digests of the plain functions that the kernels were written after, with all that they reach (core.closure).

Where tests/bindings/test_digests.py says that one differs: bring the kernels after the source, see that their tests
pass, and run `python tests/bindings/test_digests.py`, which writes the new ones.
"""

DIGESTS = {
    "actor_critic.act": "450954fd7e128cdf",
    "actor_critic.value": "66bf7a7ae8f99c5b",
    "actor_q.act": "a8dbd7e69b5583bb",
    "collector.steps": "4b4a8e357a6138a8",
    "ddpg.learn": "f0e1b781aeaac78e",
    "dqn.learn": "4d40863f1acd0369",
    "off_policy.learn_from_replay": "3957131e7c5754e6",
    "off_policy.steps": "7f17d1997d47e189",
    "ppo.learn": "9c63b96006731e47",
    "q_network.act": "1a7acdcfb6115da6",
    "returns.explained_variance": "8ad7f1b4c3e2ae7b",
    "returns.gae": "e247cdd6ee26b408",
    "rng.uniform": "3a43ee4272bf5557",
    "rnn.recur": "b800c1f2a33c0d93",
    "sac.learn": "aab8b5c3cc1107d3",
    "td3.learn": "20db408556ea81b4",
}
