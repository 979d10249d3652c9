"""Digests of the plain functions that the kernels were written after, with all that they reach (core.closure).

Where tests/bindings/test_digests.py says that one differs: bring the kernels after the source, see that their tests
pass, and run `python tests/bindings/test_digests.py`, which writes the new ones. Formatting, comments, docstrings and
annotations change no digest. The second number is that of the text (closure.Digest): where it alone is an older one,
kernels serve, and each start of a training takes 40 ms longer.
"""

from headrace.core.source_text import Digest

DIGESTS = {
    "actor_critic.act": Digest("aeb3c72cc5b3c7e7", "180f7d4fe11d011f"),
    "actor_critic.value": Digest("c336bfc7486053e2", "5a6d29398982f97e"),
    "collector.steps": Digest("bb2e30f11793437e", "2822b079997fc59f"),
    "off_policy.learn_from_replay": Digest("d79befa17a4cf53d", "c88c27c55b1ce6b7"),
    "off_policy.steps": Digest("55d0361c0ca6a433", "863d57de12fcb4f2"),
    "on_policy.process_and_learn": Digest("804bbb849b77ead5", "618ed57c7553e001"),
    "ppo.learn": Digest("251922074023542f", "59c4cdac54c5587a"),
    "priorities.add_up": Digest("f5a525594b217dfc", "a9ecc4e253bc5bf4"),
    "priorities.descend": Digest("f4134c17dbc026bc", "0e1d8302fd5535e7"),
    "returns.explained_variance": Digest("d2673cdbad7e0238", "be1b456fef1f7aa9"),
    "returns.gae": Digest("8ae7338c91edacc8", "3987b95b7f97ebe5"),
    "returns.normalized": Digest("eb885f1866421ab8", "5dde3d2b0d6dbd34"),
    "rng.shuffled": Digest("9bb51c82da3dbe91", "66e41dd11bc743ea"),
    "rng.uniform": Digest("55043a874ac5f506", "a17d12d5a2cc30fa"),
    "rnn.recur": Digest("5b657049b0b0e201", "03c8b3ef48ac9f53"),
    "rnn.step": Digest("59dc8f2a42e75caa", "df50bee0505b6070"),
}
