"""Digests of the plain functions that the kernels were written after, with all that they reach (core.closure).

Where tests/bindings/test_digests.py says that one differs: bring the kernels after the source, see that their tests
pass, and run `python tests/bindings/test_digests.py`, which writes the new ones.
"""

DIGESTS = {
    "actor_critic.act": "2e3325c6e9345d9c",
    "actor_critic.value": "ff7be471b1fd80d9",
    "actor_q.act": "5f40fed9025b9ea0",
    "collector.steps": "4b4a8e357a6138a8",
    "ddpg.learn": "f0366a83dc22a400",
    "dqn.learn": "9c1878609fcae310",
    "off_policy.learn_from_replay": "a8a2efe15d81687a",
    "off_policy.steps": "20a4624b49415cd0",
    "ppo.learn": "7b35e7c8abea74e5",
    "q_network.act": "d6a3bedfc3ba30ff",
    "returns.explained_variance": "8ad7f1b4c3e2ae7b",
    "returns.gae": "e247cdd6ee26b408",
    "rng.uniform": "3a43ee4272bf5557",
    "rnn.recur": "b800c1f2a33c0d93",
    "sac.learn": "125c33e4c42d6c75",
    "td3.learn": "027c457d5d2d47c9",
}
