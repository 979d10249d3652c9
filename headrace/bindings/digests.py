"""Digests of the plain functions that the kernels were written after, with all that they reach (core.closure).

Where tests/bindings/test_digests.py says that one differs: bring the kernels after the source, see that their tests
pass, and run `python tests/bindings/test_digests.py`, which writes the new ones.
"""

DIGESTS = {
    "actor_critic.act": "c5db1ccd1cd20346",
    "actor_critic.value": "d71a688d871cc163",
    "actor_q.act": "82cc283bcd146a4d",
    "collector.steps": "4b4a8e357a6138a8",
    "ddpg.learn": "f0366a83dc22a400",
    "dqn.learn": "f7bb21d5d9a64560",
    "off_policy.learn_from_replay": "c162e4f339158848",
    "off_policy.steps": "404d6184e69a4a9a",
    "ppo.learn": "08e257e91aca8839",
    "q_network.act": "e0611a04127c7195",
    "returns.explained_variance": "8ad7f1b4c3e2ae7b",
    "returns.gae": "e247cdd6ee26b408",
    "rng.uniform": "3a43ee4272bf5557",
    "rnn.recur": "b800c1f2a33c0d93",
    "sac.learn": "125c33e4c42d6c75",
    "td3.learn": "027c457d5d2d47c9",
}
