"""Digests of the plain functions that the kernels were written after, with all that they reach (core.closure).

Where tests/bindings/test_digests.py says that one differs: bring the kernels after the source, see that their tests
pass, and run `python tests/bindings/test_digests.py`, which writes the new ones. Formatting, comments, docstrings and
annotations change no digest. The second number is that of the text (closure.Digest): where it alone is an older one,
kernels serve, and each start of a training takes 40 ms longer.
"""

from headrace.core.source_text import Digest

DIGESTS = {
    "a2c.gradient": Digest("6d02a02e3ea4c2ad", "606ec7ecf5afdf4c"),
    "actor_critic.act": Digest("dfc848777424e815", "fa9e2e2ec1d82950"),
    "actor_critic.value": Digest("042326dca2412c4b", "cdb261c1edbfd02d"),
    "actor_q.act": Digest("01dd16f7ede8857c", "8da28a04282a3ed7"),
    "collector.steps": Digest("b929f46b25472dad", "66def069f95e4d9c"),
    "ddpg.learn": Digest("c89dfc6eb8b66baa", "56dc172e383c4f03"),
    "dqn.learn": Digest("b3fbbef661c71c76", "44e18e01e4e648bd"),
    "off_policy.learn_from_replay": Digest("cf0670456f2706fb", "c822fa8d85644cc5"),
    "off_policy.steps": Digest("6078b02efee6ab5b", "5628cff099565199"),
    "on_policy.process_and_learn": Digest("b65a0405ec2cbaf7", "6a522499e48fc862"),
    "ppo.learn": Digest("a7a38872b43b12fe", "f75529a906c08da3"),
    "pqn.learn": Digest("e15f573e968d4923", "d1c70ea814944db6"),
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
    "sac.learn": Digest("a4867e3677e1d34a", "3c2e6487fb41fd7f"),
    "td3.learn": Digest("c8344448a0385b09", "78a2b41ee392e394"),
    "tqc.learn": Digest("ed272790459eb5f8", "18af5b25b0f6768a"),
    "trpo.learn_critic": Digest("f9fe1aa012c3bdfb", "cd5fc5866564447f"),
}
