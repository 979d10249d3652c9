"""Digests of the plain functions that the kernels were written after, with all that they reach (core.closure).

Where tests/bindings/test_digests.py says that one differs: bring the kernels after the source, see that their tests
pass, and run `python tests/bindings/test_digests.py`, which writes the new ones. Formatting, comments, docstrings and
annotations change no digest. The second number is that of the text (closure.Digest): where it alone is an older one,
kernels serve, and each start of a training takes 40 ms longer.
"""

from headrace.core.source_text import Digest

DIGESTS = {
    "a2c.gradient": Digest("50535e0e2410da5b", "df9207cad9eae84f"),
    "actor_critic.act": Digest("6bf2551aab747633", "524931d588009655"),
    "actor_critic.value": Digest("8d3ed0d751d1eea0", "47d1fd0c78be57a5"),
    "actor_q.act": Digest("2bc9dc3beec7c56a", "0b81fad90204c548"),
    "collector.steps": Digest("df25698bc9b8a16b", "afc3e7e552cfa095"),
    "ddpg.learn": Digest("c2b30d8434807c8b", "d3d5065aaf4c719e"),
    "dqn.learn": Digest("917cb03ce2207405", "5437e11a245b0bc3"),
    "off_policy.learn_from_replay": Digest("e0f035a9546dd8c5", "756c07918a48ea70"),
    "off_policy.steps": Digest("659a6b276ad48464", "c6d8cc02e7507e13"),
    "on_policy.process_and_learn": Digest("674dc63cbf890dfc", "7c0b38b4e40fdddd"),
    "ppo.learn": Digest("6875eb1d983d7beb", "a5eeb681383c6de8"),
    "pqn.learn": Digest("78121cf35ce15b97", "26911475cd01a5b4"),
    "priorities.add_up": Digest("ca8b56526be5a2aa", "c2cbb83e8b5f2387"),
    "priorities.descend": Digest("05b6312bf11f1208", "24b21c70b049cefc"),
    "q_network.act": Digest("c92a6b2b6aabad94", "194b9b1a6897c52b"),
    "reinforce.gradient": Digest("1f8c513a5725a0e2", "dc8024ef446db648"),
    "returns.explained_variance": Digest("d2673cdbad7e0238", "be1b456fef1f7aa9"),
    "returns.gae": Digest("8ae7338c91edacc8", "3987b95b7f97ebe5"),
    "rng.shuffled": Digest("9bb51c82da3dbe91", "66e41dd11bc743ea"),
    "rng.uniform": Digest("55043a874ac5f506", "a17d12d5a2cc30fa"),
    "rnn.recur": Digest("5b657049b0b0e201", "03c8b3ef48ac9f53"),
    "rnn.step": Digest("59dc8f2a42e75caa", "df50bee0505b6070"),
    "sac.learn": Digest("5b79cc24a0260893", "cb00a1b496196b20"),
    "td3.learn": Digest("cdb8cab76ae2c4f9", "c1c9a5706678731e"),
    "tqc.learn": Digest("85f38362fa8b8ac9", "2a8ccf989e761590"),
    "trpo.learn_critic": Digest("d85b55e99b58ece9", "329af3704ec04e4f"),
}
