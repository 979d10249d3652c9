"""Digests of the plain functions that the kernels were written after, with all that they reach (core.closure).

Where tests/bindings/test_digests.py says that one differs: bring the kernels after the source, see that their tests
pass, and run `python tests/bindings/test_digests.py`, which writes the new ones. Formatting, comments, docstrings and
annotations change no digest. The second number is that of the text (closure.Digest): where it alone is an older one,
kernels serve, and each start of a training takes 40 ms longer.
"""

from headrace.core.closure import Digest

DIGESTS = {
    "a2c.gradient": Digest("99907e9f1b480d2f", "4bcec3a1c2885007"),
    "actor_critic.act": Digest("3f71b149f120ec87", "23a0efa2dd96ae16"),
    "actor_critic.value": Digest("ff4af8e761eb5970", "e6be77ded88c2c0e"),
    "actor_q.act": Digest("157ada0465bd6d0b", "5653f3bc9f852b9f"),
    "collector.steps": Digest("9b60ed2837361a95", "2749255bf718d006"),
    "crossq.learn": Digest("e1279d20427fd433", "109dfec096afe415"),
    "ddpg.learn": Digest("a0e0827309ffa6c8", "f642fe6df4f663bd"),
    "dqn.learn": Digest("c1db90c2ead8af21", "ec1d76f2e2ed134f"),
    "off_policy.learn_from_replay": Digest("440a623204f7f57f", "aa43507c82e88405"),
    "off_policy.steps": Digest("85eb1725df0628d8", "7c955ccadab0901b"),
    "on_policy.process_and_learn": Digest("d6fd592e673937e2", "d4f0c115349fa1ec"),
    "ppo.learn": Digest("3ab128fe0d2f03c7", "0665133c064f2310"),
    "pqn.learn": Digest("4d4055e91d9568d5", "4475e31b7033f5a3"),
    "priorities.add_up": Digest("ca8b56526be5a2aa", "c2cbb83e8b5f2387"),
    "priorities.descend": Digest("05b6312bf11f1208", "24b21c70b049cefc"),
    "q_network.act": Digest("6910e849f35ccb0c", "4e85ff73d8d0987e"),
    "reinforce.gradient": Digest("62c965007b465b85", "d45764d349bc61f4"),
    "returns.explained_variance": Digest("d2673cdbad7e0238", "be1b456fef1f7aa9"),
    "returns.gae": Digest("8ae7338c91edacc8", "3987b95b7f97ebe5"),
    "rng.shuffled": Digest("9bb51c82da3dbe91", "66e41dd11bc743ea"),
    "rng.uniform": Digest("55043a874ac5f506", "a17d12d5a2cc30fa"),
    "rnn.recur": Digest("c8c8eb3b92f5cc85", "c85628bcdb91d9a3"),
    "rnn.step": Digest("3d1dbba94cf4eb2d", "9853d297fc8d036c"),
    "sac.learn": Digest("0992cdcf5df0e5ef", "f5b0669a03d73c4a"),
    "td3.learn": Digest("7b8204742949f198", "7dccf0bcf22cb7c0"),
    "tqc.learn": Digest("589a6e5a26c45ba0", "38edb1211607e4b5"),
    "trpo.learn_critic": Digest("8976f7fb7618a55d", "6a935b72179c6256"),
}
