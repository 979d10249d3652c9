"""Digests of the plain functions that the kernels were written after, with all that they reach (core.closure).

Where tests/bindings/test_digests.py says that one differs: bring the kernels after the source, see that their tests
pass, and run `python tests/bindings/test_digests.py`, which writes the new ones. Formatting, comments, docstrings and
annotations change no digest. The second number is that of the text (closure.Digest): where it alone is an older one,
kernels serve, and each start of a training takes 40 ms longer.
"""

from headrace.core.closure import Digest

DIGESTS = {
    "a2c.gradient": Digest("70534a92dcc94ede", "a11ae66b04dbd4ba"),
    "actor_critic.act": Digest("49193aba85707682", "41b85836fe245fe2"),
    "actor_critic.value": Digest("2e7f141f57a13985", "019075bd4e3adbcd"),
    "actor_q.act": Digest("dc69aaeddb67123d", "451b93889906ac24"),
    "collector.steps": Digest("9b60ed2837361a95", "2749255bf718d006"),
    "crossq.learn": Digest("e1279d20427fd433", "109dfec096afe415"),
    "ddpg.learn": Digest("a0e0827309ffa6c8", "f642fe6df4f663bd"),
    "dqn.learn": Digest("a98978c26ebf2a6d", "a5a46fab102f86c6"),
    "off_policy.learn_from_replay": Digest("59e82971111c524e", "c6a0ebfc2943ee29"),
    "off_policy.steps": Digest("3f6505f3b7734e5b", "027195ffbd8476c0"),
    "on_policy.process_and_learn": Digest("be781b2bccb51193", "5217a44d9b5c2627"),
    "ppo.learn": Digest("46c65b128b1c3954", "4e270edbdea7b15d"),
    "pqn.learn": Digest("4d4055e91d9568d5", "4475e31b7033f5a3"),
    "priorities.add_up": Digest("ca8b56526be5a2aa", "c2cbb83e8b5f2387"),
    "priorities.descend": Digest("05b6312bf11f1208", "24b21c70b049cefc"),
    "q_network.act": Digest("01ca62e0bc4143a3", "e68d8f128d2f1081"),
    "reinforce.gradient": Digest("cfc03c23ed738141", "0d95098e44b523a0"),
    "returns.explained_variance": Digest("d2673cdbad7e0238", "be1b456fef1f7aa9"),
    "returns.gae": Digest("8ae7338c91edacc8", "3987b95b7f97ebe5"),
    "rng.shuffled": Digest("9bb51c82da3dbe91", "66e41dd11bc743ea"),
    "rng.uniform": Digest("55043a874ac5f506", "a17d12d5a2cc30fa"),
    "rnn.recur": Digest("c8c8eb3b92f5cc85", "c85628bcdb91d9a3"),
    "rnn.step": Digest("3d1dbba94cf4eb2d", "9853d297fc8d036c"),
    "sac.learn": Digest("0992cdcf5df0e5ef", "f5b0669a03d73c4a"),
    "td3.learn": Digest("7b8204742949f198", "7dccf0bcf22cb7c0"),
    "tqc.learn": Digest("589a6e5a26c45ba0", "38edb1211607e4b5"),
    "trpo.learn_critic": Digest("08f2fa3148a98d93", "53a965b2d56c1dce"),
}
