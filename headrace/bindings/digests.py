"""Digests of the plain functions that the kernels were written after, with all that they reach (core.closure).

Where tests/bindings/test_digests.py says that one differs: bring the kernels after the source, see that their tests
pass, and run `python tests/bindings/test_digests.py`, which writes the new ones.
"""

DIGESTS = {
    "actor_critic.act": "0114c904008e6efd",
    "actor_critic.value": "51b51b3eff666444",
    "actor_q.act": "725144611a1f79d2",
    "collector.steps": "4b4a8e357a6138a8",
    "ddpg.learn": "f0366a83dc22a400",
    "dqn.learn": "00a700b6baca9fbe",
    "off_policy.learn_from_replay": "5f9a5d2a179ea2bc",
    "off_policy.steps": "e194e486a23401fe",
    "ppo.learn": "2b9111f91423bb7d",
    "q_network.act": "00858e09a260fa77",
    "returns.explained_variance": "8ad7f1b4c3e2ae7b",
    "returns.gae": "e247cdd6ee26b408",
    "rng.uniform": "3a43ee4272bf5557",
    "rnn.recur": "b800c1f2a33c0d93",
    "sac.learn": "125c33e4c42d6c75",
    "td3.learn": "17041dd845710c38",
}
