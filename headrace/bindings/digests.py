"""Digests of the plain functions that the kernels were written after, with all that they reach (core.closure).

Where tests/bindings/test_digests.py says that one differs: bring the kernels after the source, see that their tests
pass, and run `python tests/bindings/test_digests.py`, which writes the new ones. Formatting, comments, docstrings and
annotations change no digest. The second number is that of the text (closure.Digest): where it alone is an older one,
kernels serve, and each start of a training takes 40 ms longer.
"""

from headrace.core.closure import Digest

DIGESTS = {
    "a2c.gradient": Digest("6d02a02e3ea4c2ad", "606ec7ecf5afdf4c"),
    "actor_critic.act": Digest("dfc848777424e815", "fa9e2e2ec1d82950"),
    "actor_critic.value": Digest("042326dca2412c4b", "cdb261c1edbfd02d"),
    "actor_q.act": Digest("40eaada34e9307c2", "9a72659d0e1b5146"),
    "collector.steps": Digest("07dd3d46f2ef02e9", "8301eb52ed5af95e"),
    "ddpg.learn": Digest("5fe400b0863f37e5", "2913796b32fab7a5"),
    "dqn.learn": Digest("a92b2db751d588ee", "df521bb9fbeabe4c"),
    "off_policy.learn_from_replay": Digest("c23dd0a24df48d4e", "a9d6b8d3833abd7b"),
    "off_policy.steps": Digest("b710d0f3dbcdfbef", "eb8d6f8e366dbfb9"),
    "on_policy.process_and_learn": Digest("07bab83e9dd19566", "e50783180f6a073d"),
    "ppo.learn": Digest("36566f898e0bf269", "8bca2c3d5b1eb5a6"),
    "pqn.learn": Digest("04dc9e80471367ae", "4df58e45f7040710"),
    "priorities.add_up": Digest("ca8b56526be5a2aa", "c2cbb83e8b5f2387"),
    "priorities.descend": Digest("05b6312bf11f1208", "24b21c70b049cefc"),
    "q_network.act": Digest("10eae42b28ffdca9", "d40e5ef5a7daa95e"),
    "reinforce.gradient": Digest("735cae2363401fca", "91c4b97a10d9f94d"),
    "returns.explained_variance": Digest("d2673cdbad7e0238", "be1b456fef1f7aa9"),
    "returns.gae": Digest("8ae7338c91edacc8", "3987b95b7f97ebe5"),
    "rng.shuffled": Digest("9bb51c82da3dbe91", "66e41dd11bc743ea"),
    "rng.uniform": Digest("55043a874ac5f506", "a17d12d5a2cc30fa"),
    "rnn.recur": Digest("5b657049b0b0e201", "03c8b3ef48ac9f53"),
    "rnn.step": Digest("59dc8f2a42e75caa", "df50bee0505b6070"),
    "sac.learn": Digest("2d3e6a0710da4e0e", "19abb4e2b1f9bdd4"),
    "td3.learn": Digest("47b455e7a0358495", "3da9114d6f78fc19"),
    "tqc.learn": Digest("8f053f2359ed2518", "277b338048dd5adb"),
    "trpo.learn_critic": Digest("5f0676543b36b2fe", "ac3ba1a9468e543f"),
}
