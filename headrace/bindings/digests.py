"""Digests of the plain functions that the kernels were written after, with all that they reach (core.closure).

Where tests/bindings/test_digests.py says that one differs: bring the kernels after the source, see that their tests
pass, and run `python tests/bindings/test_digests.py`, which writes the new ones.
"""

DIGESTS = {
    "actor_critic.act": "6905660122e6015d",
    "actor_critic.value": "5385ea3131132b03",
    "actor_q.act": "653c53b26937dc7b",
    "collector.steps": "4b4a8e357a6138a8",
    "ddpg.learn": "09dcd541413997cc",
    "dqn.learn": "36caea3d62973809",
    "off_policy.learn_from_replay": "7d8c57f019a0204e",
    "off_policy.steps": "e089006639facac5",
    "ppo.learn": "b238d0cb4ede51bd",
    "q_network.act": "88bf4d80898a2a79",
    "returns.explained_variance": "8ad7f1b4c3e2ae7b",
    "returns.gae": "e247cdd6ee26b408",
    "rng.uniform": "3a43ee4272bf5557",
    "rnn.recur": "b800c1f2a33c0d93",
    "sac.learn": "b446c5ac3033e5e8",
    "td3.learn": "b36c98f6e2193e83",
}
