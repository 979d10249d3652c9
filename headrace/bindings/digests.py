"""Digests of the plain functions that the kernels were written after, with all that they reach (core.closure).

Where tests/bindings/test_digests.py says that one differs: bring the kernels after the source, see that their tests
pass, and run `python tests/bindings/test_digests.py`, which writes the new ones. Formatting, comments, docstrings and
annotations change no digest. The second number is that of the text (closure.Digest): where it alone is an older one,
kernels serve, and each start of a training takes 40 ms longer.
"""

from headrace.core.closure import Digest

DIGESTS = {
    "a2c.gradient": Digest("10cf8dea9d9c7626", "ea7b8b96d06248bd"),
    "actor_critic.act": Digest("ea35be4d495984d0", "1738bd60b42f5614"),
    "actor_critic.value": Digest("d96a7aa9e658aa6c", "3dde6438f7b74750"),
    "actor_q.act": Digest("04c3eaea110e91cb", "d91f19af1880c494"),
    "collector.steps": Digest("d63adb221bc8ab59", "3dd81b36835fd696"),
    "crossq.learn": Digest("8dcee1485dfb60d0", "3cd8a5023c182776"),
    "ddpg.learn": Digest("2a435386bea0504a", "013193ded7ca1a20"),
    "dqn.learn": Digest("a92b2db751d588ee", "df521bb9fbeabe4c"),
    "off_policy.learn_from_replay": Digest("3c3eccc5afac41b3", "4d7cf0070459f412"),
    "off_policy.steps": Digest("32ac842fa58cd222", "bd4a423d81243c45"),
    "on_policy.process_and_learn": Digest("587b8f577df3a401", "0c8e6d28f0252eef"),
    "ppo.learn": Digest("0e6932d5335fcc22", "e9aa9c7f8c44fa74"),
    "pqn.learn": Digest("04dc9e80471367ae", "4df58e45f7040710"),
    "priorities.add_up": Digest("ca8b56526be5a2aa", "c2cbb83e8b5f2387"),
    "priorities.descend": Digest("05b6312bf11f1208", "24b21c70b049cefc"),
    "q_network.act": Digest("10eae42b28ffdca9", "d40e5ef5a7daa95e"),
    "reinforce.gradient": Digest("d53b3f4b1ff731a6", "3429762cc8b7b6a7"),
    "returns.explained_variance": Digest("d2673cdbad7e0238", "be1b456fef1f7aa9"),
    "returns.gae": Digest("8ae7338c91edacc8", "3987b95b7f97ebe5"),
    "rng.shuffled": Digest("9bb51c82da3dbe91", "66e41dd11bc743ea"),
    "rng.uniform": Digest("55043a874ac5f506", "a17d12d5a2cc30fa"),
    "rnn.recur": Digest("5b657049b0b0e201", "03c8b3ef48ac9f53"),
    "rnn.step": Digest("59dc8f2a42e75caa", "df50bee0505b6070"),
    "sac.learn": Digest("b0639605ac4b777e", "1a8eb03184016ffc"),
    "td3.learn": Digest("0f2c40009cdf37f9", "111067947d6cdd00"),
    "tqc.learn": Digest("a8658e6bd7b34f93", "1f4f7172cf96e7d5"),
    "trpo.learn_critic": Digest("98ebcb4491dbd669", "756dbe256f56758c"),
}
