"""Digests of the plain functions that the kernels were written after, with all that they reach (core.closure).

Where tests/bindings/test_digests.py says that one differs: bring the kernels after the source, see that their tests
pass, and run `python tests/bindings/test_digests.py`, which writes the new ones. Formatting, comments, docstrings and
annotations change no digest. The second number is that of the text (closure.Digest): where it alone is an older one,
kernels serve, and each start of a training takes 40 ms longer.
"""

from headrace.core.closure import Digest

DIGESTS = {
    "a2c.gradient": Digest("b89ad2d7c7446af4", "0f2bcc86a0a360b1"),
    "actor_critic.act": Digest("0882e9a1da9f6358", "32d9fb2a5cfebe90"),
    "actor_critic.value": Digest("5ed0c0db5af230c1", "741c7d167f0d36e2"),
    "actor_q.act": Digest("672fb123b8c52ec4", "09e67d44a03a8ee1"),
    "collector.steps": Digest("d63adb221bc8ab59", "3dd81b36835fd696"),
    "crossq.learn": Digest("a927fba717e37c01", "f457dc529ec3f101"),
    "ddpg.learn": Digest("4109c16196eacd23", "898744fbb3251a25"),
    "dqn.learn": Digest("26fa0eefd1755cad", "5905adb92e96c329"),
    "off_policy.learn_from_replay": Digest("ac5eed6e5d8182ca", "f1932dd8d18b91e2"),
    "off_policy.steps": Digest("659622397b6bc174", "e0ec0b19ee3d13b2"),
    "on_policy.process_and_learn": Digest("782c26041b77821a", "c1f1795d118b5081"),
    "ppo.learn": Digest("1fff8b9758dc943a", "3ed8e54dfcd58dd6"),
    "pqn.learn": Digest("0d8eb4ba27e6ef47", "7ce0b0b3245ab0af"),
    "priorities.add_up": Digest("ca8b56526be5a2aa", "c2cbb83e8b5f2387"),
    "priorities.descend": Digest("05b6312bf11f1208", "24b21c70b049cefc"),
    "q_network.act": Digest("54ccc1e6f0567b33", "391e3aed1a008d99"),
    "reinforce.gradient": Digest("6a4506a7f60c87c8", "5453e76ba716e168"),
    "returns.explained_variance": Digest("d2673cdbad7e0238", "be1b456fef1f7aa9"),
    "returns.gae": Digest("8ae7338c91edacc8", "3987b95b7f97ebe5"),
    "rng.shuffled": Digest("9bb51c82da3dbe91", "66e41dd11bc743ea"),
    "rng.uniform": Digest("55043a874ac5f506", "a17d12d5a2cc30fa"),
    "rnn.recur": Digest("5b657049b0b0e201", "03c8b3ef48ac9f53"),
    "rnn.step": Digest("59dc8f2a42e75caa", "df50bee0505b6070"),
    "sac.learn": Digest("86ae916af41ab308", "cc816653a91ef57f"),
    "td3.learn": Digest("249a014076c90347", "bcff6cca4090e48d"),
    "tqc.learn": Digest("eb0c62c8408546ac", "3fc5bfdb4e8a538a"),
    "trpo.learn_critic": Digest("c373ea080c08d475", "7e7c8a9dc9d76989"),
}
