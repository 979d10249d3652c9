"""Digests of the plain functions that the kernels were written after, with all that they reach (core.closure).

Where tests/bindings/test_digests.py says that one differs: bring the kernels after the source, see that their tests
pass, and run `python tests/bindings/test_digests.py`, which writes the new ones. Formatting, comments, docstrings and
annotations change no digest. The second number is that of the text (closure.Digest): where it alone is an older one,
kernels serve, and each start of a training takes 40 ms longer.
"""

from headrace.core.closure import Digest

DIGESTS = {
    "a2c.gradient": Digest("b356b84d1d53ce70", "e08daa442fd1b4e5"),
    "actor_critic.act": Digest("ded6316fbc3e80a4", "2fbf633932a09b3d"),
    "actor_critic.value": Digest("72fc98391552839a", "51b6661ba6983014"),
    "actor_q.act": Digest("1555fa684a5abb67", "3b915ba4a0330de1"),
    "collector.steps": Digest("c4cd4be69a4b0f51", "7525fef58a9a6f63"),
    "crossq.learn": Digest("cba0435409a09267", "8fed4ba04c2a31f1"),
    "ddpg.learn": Digest("575c1acae20f110e", "e3c430aba7bd5d35"),
    "dqn.learn": Digest("44a1f134047cc95e", "dba3255a929354b4"),
    "off_policy.learn_from_replay": Digest("7fb73182bf5ec744", "c4c61b7a5021b163"),
    "off_policy.steps": Digest("4a0a8076f02a3e85", "f76f3abda0ddf062"),
    "on_policy.process_and_learn": Digest("a35abfad00194761", "2993ec6ba7d89a78"),
    "ppo.learn": Digest("148107d4ee07ce31", "349c7bf049fc8773"),
    "pqn.learn": Digest("bce5bd548d9e0214", "ba9ee8fc98291e20"),
    "priorities.add_up": Digest("ca8b56526be5a2aa", "c2cbb83e8b5f2387"),
    "priorities.descend": Digest("05b6312bf11f1208", "24b21c70b049cefc"),
    "q_network.act": Digest("837a6e0c190f0c06", "21ebf312ab19f8fa"),
    "reinforce.gradient": Digest("f7efd143c5db4909", "eacace2da790b524"),
    "returns.explained_variance": Digest("d2673cdbad7e0238", "be1b456fef1f7aa9"),
    "returns.gae": Digest("8ae7338c91edacc8", "3987b95b7f97ebe5"),
    "rng.shuffled": Digest("9bb51c82da3dbe91", "66e41dd11bc743ea"),
    "rng.uniform": Digest("55043a874ac5f506", "a17d12d5a2cc30fa"),
    "rnn.recur": Digest("c8c8eb3b92f5cc85", "c85628bcdb91d9a3"),
    "rnn.step": Digest("3d1dbba94cf4eb2d", "9853d297fc8d036c"),
    "sac.learn": Digest("6a37b4a7ff5bef96", "5d5ac2e9759e66a7"),
    "td3.learn": Digest("2707a857b410b288", "ce96f6848a522a70"),
    "tqc.learn": Digest("944a8c5206d9c490", "fd96ba856df7d55a"),
    "trpo.learn_critic": Digest("1bcc42279104835f", "6574d048dd458dd0"),
}
