"""Digests of the plain functions that the kernels were written after, with all that they reach (core.closure).

Where tests/bindings/test_digests.py says that one differs: bring the kernels after the source, see that their tests
pass, and run `python tests/bindings/test_digests.py`, which writes the new ones. Formatting, comments, docstrings and
annotations change no digest. The second number is that of the text (closure.Digest): where it alone is an older one,
kernels serve, and each start of a training takes 40 ms longer.
"""

from headrace.core.source_text import Digest

DIGESTS = {
    "actor_critic.act": Digest("89c2475c5679cbcf", "ad4fef65df1d093e"),
    "actor_critic.value": Digest("ab3386e760e7c499", "fb4935b6ddbdea6a"),
    "collector.steps": Digest("d068602f1abfce98", "0e321f95b7e8fe68"),
    "off_policy.learn_from_replay": Digest("86cd371450c1ac04", "3c895ed6565b51df"),
    "off_policy.steps": Digest("1bf376e3e33f0b55", "f7a660af92dd85e2"),
    "on_policy.process_and_learn": Digest("12db025140f36475", "c91f41bf5aa0756c"),
    "ppo.learn": Digest("25c4f6a7a04d0acd", "7b058e15d9aba4a7"),
    "priorities.add_up": Digest("f5a525594b217dfc", "a9ecc4e253bc5bf4"),
    "priorities.descend": Digest("f4134c17dbc026bc", "0e1d8302fd5535e7"),
    "returns.explained_variance": Digest("d2673cdbad7e0238", "be1b456fef1f7aa9"),
    "returns.gae": Digest("8ae7338c91edacc8", "3987b95b7f97ebe5"),
    "returns.normalized": Digest("eb885f1866421ab8", "5dde3d2b0d6dbd34"),
    "rng.shuffled": Digest("9bb51c82da3dbe91", "66e41dd11bc743ea"),
    "rng.uniform": Digest("55043a874ac5f506", "a17d12d5a2cc30fa"),
}
