"""Digests of the plain functions that the kernels were written after, with all that they reach (core.closure).

Where tests/bindings/test_digests.py says that one differs: bring the kernels after the source, see that their tests
pass, and run `python tests/bindings/test_digests.py`, which writes the new ones.
"""

DIGESTS = {
    "a2c.gradient": "06df469e559dd02b",
    "actor_critic.act": "a588f4cc920be2f9",
    "actor_critic.value": "7f528ad67aca4c5d",
    "actor_q.act": "cb4ff1badfb0f6b7",
    "collector.steps": "a080b73c28184736",
    "crossq.learn": "7c44c7b37e38542f",
    "ddpg.learn": "922d3579314f27f2",
    "dqn.learn": "9f2d971898d093be",
    "off_policy.learn_from_replay": "36b21b7ff15a55c9",
    "off_policy.steps": "f1a08fd33e93b452",
    "on_policy.process_and_learn": "6efe64f6946d8cee",
    "ppo.learn": "8c44e7000bdd043e",
    "pqn.learn": "025a6a2c9d7098d7",
    "priorities.add_up": "c9720c7b097a140e",
    "priorities.descend": "b81d14165cf6aff2",
    "q_network.act": "d57aa1fa2358bad4",
    "reinforce.gradient": "50fb1d74c3541843",
    "returns.explained_variance": "a1d812293c1302fb",
    "returns.gae": "72b444498b39a9b0",
    "rng.shuffled": "5a45c004a0cd7da1",
    "rng.uniform": "1f5263b2c0c49c1e",
    "rnn.recur": "f7b7c0800a0befd9",
    "rnn.step": "b7cb8a26aca188cf",
    "sac.learn": "2e8f71759b730cfa",
    "td3.learn": "e5c99257bf478da5",
    "tqc.learn": "8095ea61da770137",
    "trpo.learn_critic": "696960bb7285b563",
}
