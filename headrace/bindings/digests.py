"""Digests of the plain functions that the kernels were written after, with all that they reach (core.closure).

Where tests/bindings/test_digests.py says that one differs: bring the kernels after the source, see that their tests
pass, and run `python tests/bindings/test_digests.py`, which writes the new ones. Formatting, comments, docstrings and
annotations change no digest. The second number is that of the text (closure.Digest): where it alone is an older one,
kernels serve, and each start of a training takes 40 ms longer.
"""

from headrace.core.closure import Digest

DIGESTS = {
    "a2c.gradient": Digest("b44eea913e298b57", "2defc2fd33cb6348"),
    "actor_critic.act": Digest("8045bed12974fe69", "491646e811f27a84"),
    "actor_critic.value": Digest("cc6a848ad09e42d1", "f1c1262a014fff8b"),
    "actor_q.act": Digest("30d1e979cd5d9e42", "9b3207c827fba0bd"),
    "collector.steps": Digest("c4cd4be69a4b0f51", "7525fef58a9a6f63"),
    "crossq.learn": Digest("d2832a0250d1c2cd", "c7d8a74a09830213"),
    "ddpg.learn": Digest("3f9cd2eaf09e6959", "a90dafd1d9322645"),
    "dqn.learn": Digest("81ae2ac760ffa4e5", "eea628bf09436cf7"),
    "off_policy.learn_from_replay": Digest("fa62738cadf68e55", "26df7c670ee073f5"),
    "off_policy.steps": Digest("c70853614daca908", "50f93329a2fafff2"),
    "on_policy.process_and_learn": Digest("603bb7e24046195a", "def3841ad665c62d"),
    "ppo.learn": Digest("17f652fdd6a64b9e", "23a9e10052c53dfa"),
    "pqn.learn": Digest("dfab687b9f72678c", "bc9090adef7730c0"),
    "priorities.add_up": Digest("ca8b56526be5a2aa", "c2cbb83e8b5f2387"),
    "priorities.descend": Digest("05b6312bf11f1208", "24b21c70b049cefc"),
    "q_network.act": Digest("7b3bb5cf72daac93", "d8a65f683bceaa79"),
    "reinforce.gradient": Digest("b07a22b666281c5a", "fac16629f0869de6"),
    "returns.explained_variance": Digest("d2673cdbad7e0238", "be1b456fef1f7aa9"),
    "returns.gae": Digest("8ae7338c91edacc8", "3987b95b7f97ebe5"),
    "rng.shuffled": Digest("9bb51c82da3dbe91", "66e41dd11bc743ea"),
    "rng.uniform": Digest("55043a874ac5f506", "a17d12d5a2cc30fa"),
    "rnn.recur": Digest("c8c8eb3b92f5cc85", "c85628bcdb91d9a3"),
    "rnn.step": Digest("3d1dbba94cf4eb2d", "9853d297fc8d036c"),
    "sac.learn": Digest("1f98fce523b6c687", "1f45c43a3f38b23a"),
    "td3.learn": Digest("1e05173646b8ac6e", "fb40c4a2ebf5751d"),
    "tqc.learn": Digest("3de3e31419e7a5a4", "54ebe06832deecdd"),
    "trpo.learn_critic": Digest("7a68864d36cea2bc", "2f5416ee412db143"),
}
