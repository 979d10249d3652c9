"""Digests of the plain functions that the kernels were written after, with all that they reach (core.closure).

Where tests/bindings/test_digests.py says that one differs: bring the kernels after the source, see that their tests
pass, and run `python tests/bindings/test_digests.py`, which writes the new ones.
"""

DIGESTS = {
    "a2c.gradient": "b3a7508debdd7eb8",
    "actor_critic.act": "58d58540e7c8143e",
    "actor_critic.value": "a613c7819c8ced2c",
    "actor_q.act": "a8dbd7e69b5583bb",
    "collector.steps": "4b4a8e357a6138a8",
    "ddpg.learn": "f0366a83dc22a400",
    "dqn.learn": "f7bb21d5d9a64560",
    "off_policy.learn_from_replay": "9c3408f0e4999068",
    "off_policy.steps": "deb3a26981f69be5",
    "ppo.learn": "460355faea85fe6a",
    "pqn.learn": "543e15346d70eed8",
    "q_network.act": "1a7acdcfb6115da6",
    "reinforce.gradient": "9b29a8774cd5bcbb",
    "returns.explained_variance": "8ad7f1b4c3e2ae7b",
    "returns.gae": "e247cdd6ee26b408",
    "rng.uniform": "3a43ee4272bf5557",
    "rnn.recur": "b800c1f2a33c0d93",
    "sac.learn": "125c33e4c42d6c75",
    "td3.learn": "027c457d5d2d47c9",
    "trpo.learn_critic": "1cd6e1fa01c7eb5a",
}
