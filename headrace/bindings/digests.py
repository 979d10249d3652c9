"""Digests of the plain functions that the kernels were written after, with all that they reach (core.closure).

Where tests/bindings/test_digests.py says that one differs: bring the kernels after the source, see that their tests
pass, and run `python tests/bindings/test_digests.py`, which writes the new ones. Formatting, comments, docstrings and
annotations change no digest. The second number is that of the text (closure.Digest): where it alone is an older one,
kernels serve, and each start of a training takes 40 ms longer.
"""

from headrace.core.source_text import Digest

DIGESTS = {
    "actor_critic.act": Digest("6bf2551aab747633", "524931d588009655"),
    "actor_critic.value": Digest("8d3ed0d751d1eea0", "47d1fd0c78be57a5"),
    "actor_q.act": Digest("2bc9dc3beec7c56a", "0b81fad90204c548"),
    "collector.steps": Digest("18a7d5f19a186616", "b8d8dfa08ee30f25"),
    "ddpg.learn": Digest("89cf3299450abc55", "fd03266e77fd5188"),
    "dqn.learn": Digest("1acdc0c4e2181158", "d872a1b9d78495f8"),
    "off_policy.learn_from_replay": Digest("25271c8fe44e62c5", "fd6b5c20cbbc6f9b"),
    "off_policy.steps": Digest("64f1ddf946b6bed5", "6eb0c98fd06e6515"),
    "on_policy.process_and_learn": Digest("e1222fd6564b3b10", "e8407b500c26eb01"),
    "ppo.learn": Digest("03c743cca60f8944", "74d66518f6ec65c2"),
    "priorities.add_up": Digest("ca8b56526be5a2aa", "c2cbb83e8b5f2387"),
    "priorities.descend": Digest("05b6312bf11f1208", "24b21c70b049cefc"),
    "q_network.act": Digest("c92a6b2b6aabad94", "194b9b1a6897c52b"),
    "returns.explained_variance": Digest("d2673cdbad7e0238", "be1b456fef1f7aa9"),
    "returns.gae": Digest("8ae7338c91edacc8", "3987b95b7f97ebe5"),
    "returns.normalized": Digest("6903c382d56301be", "f558e3b97a5ed9c5"),
    "rng.shuffled": Digest("9bb51c82da3dbe91", "66e41dd11bc743ea"),
    "rng.uniform": Digest("55043a874ac5f506", "a17d12d5a2cc30fa"),
    "rnn.recur": Digest("5b657049b0b0e201", "03c8b3ef48ac9f53"),
    "rnn.step": Digest("59dc8f2a42e75caa", "df50bee0505b6070"),
    "sac.learn": Digest("a3d219cf583ef665", "eee25f37266b18e5"),
    "td3.learn": Digest("f0733dcd98cb2731", "b003cefbd5230e66"),
    "tqc.learn": Digest("58200ac526a34123", "08aaaeac8617d975"),
}
