"""Digests of the plain functions that the kernels were written after, with all that they reach (core.closure).

Where tests/bindings/test_digests.py says that one differs: bring the kernels after the source, see that their tests
pass, and run `python tests/bindings/test_digests.py`, which writes the new ones.
"""

DIGESTS = {
    "a2c.gradient": "06df469e559dd02b",
    "actor_critic.act": "37a535aedf2e7c55",
    "actor_critic.value": "1f32d03994604f64",
    "actor_q.act": "3b1e405935937b5d",
    "collector.steps": "a080b73c28184736",
    "crossq.learn": "7c44c7b37e38542f",
    "ddpg.learn": "922d3579314f27f2",
    "dqn.learn": "e50d5e938d1c7123",
    "off_policy.learn_from_replay": "60ff33bd44cf9abe",
    "off_policy.steps": "422c2bb61c0f0547",
    "on_policy.process_and_learn": "aea46877dcbbb91a",
    "ppo.learn": "ac5a8731b752fcef",
    "pqn.learn": "025a6a2c9d7098d7",
    "priorities.add_up": "c9720c7b097a140e",
    "priorities.descend": "b81d14165cf6aff2",
    "q_network.act": "bbf28652f0789ff5",
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
