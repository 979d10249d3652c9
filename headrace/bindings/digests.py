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
    "actor_q.act": Digest("273da32b97b0db27", "a8605f06a9c48f33"),
    "collector.steps": Digest("dc14c50c42df15c4", "7d5ac61c1830352c"),
    "ddpg.learn": Digest("be101c09e9e0379b", "043fc53647d14e40"),
    "dqn.learn": Digest("0b90b8daf12078d5", "66e4db5a7ab44515"),
    "off_policy.learn_from_replay": Digest("b4992320e32c2b9b", "d194b5f22936fe2b"),
    "off_policy.steps": Digest("29f7c372bfdaca5e", "ca9a4f183efe2a5d"),
    "on_policy.process_and_learn": Digest("4620ab3eea2b43a1", "bb6aa1b504009d5b"),
    "ppo.learn": Digest("36566f898e0bf269", "8bca2c3d5b1eb5a6"),
    "pqn.learn": Digest("99dd670760f6ceb0", "bd49e9c79b0ef524"),
    "priorities.add_up": Digest("ca8b56526be5a2aa", "c2cbb83e8b5f2387"),
    "priorities.descend": Digest("05b6312bf11f1208", "24b21c70b049cefc"),
    "q_network.act": Digest("72ae630131bd30b4", "ae9afc578b5ae51e"),
    "reinforce.gradient": Digest("735cae2363401fca", "91c4b97a10d9f94d"),
    "returns.explained_variance": Digest("d2673cdbad7e0238", "be1b456fef1f7aa9"),
    "returns.gae": Digest("8ae7338c91edacc8", "3987b95b7f97ebe5"),
    "rng.shuffled": Digest("9bb51c82da3dbe91", "66e41dd11bc743ea"),
    "rng.uniform": Digest("55043a874ac5f506", "a17d12d5a2cc30fa"),
    "rnn.recur": Digest("5b657049b0b0e201", "03c8b3ef48ac9f53"),
    "rnn.step": Digest("59dc8f2a42e75caa", "df50bee0505b6070"),
    "sac.learn": Digest("802274e2b96e653a", "b910d654e871c743"),
    "td3.learn": Digest("701366170fcdcb26", "117d5f0ba83801c2"),
    "tqc.learn": Digest("ed8d90929ec90052", "5038a90fe27d3bbf"),
    "trpo.learn_critic": Digest("5f0676543b36b2fe", "ac3ba1a9468e543f"),
}
