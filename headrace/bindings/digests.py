"""Digests of the plain functions that the kernels were written after, with all that they reach (core.closure).

Where tests/bindings/test_digests.py says that one differs: bring the kernels after the source, see that their tests
pass, and run `python tests/bindings/test_digests.py`, which writes the new ones. Formatting, comments, docstrings and
annotations change no digest. The second number is that of the text (closure.Digest): where it alone is an older one,
kernels serve, and each start of a training takes 40 ms longer.
"""

from headrace.core.closure import Digest

DIGESTS = {
    "a2c.gradient": Digest("6a4679e8c11c4cf5", "0a9b111d16a7c5a7"),
    "actor_critic.act": Digest("adb1af102f090f1b", "f825709b2137dbb2"),
    "actor_critic.value": Digest("835a6223159ee413", "63f1f9912388a583"),
    "actor_q.act": Digest("efee0c66bb014a63", "118a9b75fa375bd4"),
    "collector.steps": Digest("9b60ed2837361a95", "2749255bf718d006"),
    "crossq.learn": Digest("69ac39a878e4f6b3", "35f120c4a0505628"),
    "ddpg.learn": Digest("d3b91821ee422148", "aaee3e016b0ff6bf"),
    "dqn.learn": Digest("dcd74242211f3037", "5cca7dfae2b6031d"),
    "off_policy.learn_from_replay": Digest("a08e1be53521bd8b", "5c817bd4e55601d6"),
    "off_policy.steps": Digest("5e1a3f070ebc2b51", "58c5c233d67e32a1"),
    "on_policy.process_and_learn": Digest("ed364fcad7c9bd7a", "b2808425d07e1a26"),
    "ppo.learn": Digest("9079b833bc101981", "a3447caa20b83fa3"),
    "pqn.learn": Digest("f48c1f8446e9d4dd", "8fe9e3034dd2f069"),
    "priorities.add_up": Digest("ca8b56526be5a2aa", "c2cbb83e8b5f2387"),
    "priorities.descend": Digest("05b6312bf11f1208", "24b21c70b049cefc"),
    "q_network.act": Digest("a14eeb2afd693f25", "3ba0536ee315f586"),
    "reinforce.gradient": Digest("c3518d9b5c0012d6", "41dcd1790b2dcf57"),
    "returns.explained_variance": Digest("d2673cdbad7e0238", "be1b456fef1f7aa9"),
    "returns.gae": Digest("8ae7338c91edacc8", "3987b95b7f97ebe5"),
    "rng.shuffled": Digest("9bb51c82da3dbe91", "66e41dd11bc743ea"),
    "rng.uniform": Digest("55043a874ac5f506", "a17d12d5a2cc30fa"),
    "rnn.recur": Digest("c8c8eb3b92f5cc85", "c85628bcdb91d9a3"),
    "rnn.step": Digest("3d1dbba94cf4eb2d", "9853d297fc8d036c"),
    "sac.learn": Digest("5b9dac07e11e1425", "8604bd31dc5e55eb"),
    "td3.learn": Digest("446cfcc56365b5d2", "138cc9a4fb41b59b"),
    "tqc.learn": Digest("3d7f155a938edb13", "1ef9bac3ddacdd3e"),
    "trpo.learn_critic": Digest("2f5c591f206f06c4", "b729285f4f42cd1d"),
}
