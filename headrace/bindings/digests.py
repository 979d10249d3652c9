"""Digests of the plain functions that the kernels were written after, with all that they reach (core.closure).

Where tests/bindings/test_digests.py says that one differs: bring the kernels after the source, see that their tests
pass, and run `python tests/bindings/test_digests.py`, which writes the new ones.
"""

DIGESTS = {
    "actor_critic.act": "207905f9e66e77c9",
    "actor_critic.value": "c8429ad038ddb5af",
    "collector.steps": "d5a2c913474d3fe0",
    "ddpg.learn": "f512351b0f0cc937",
    "dqn.learn": "0258d79eb1b3bd5a",
    "ppo.learn": "0a2dc8e087c1b8ad",
    "returns.explained_variance": "433d6b7593f2a7ae",
    "returns.gae": "a2cce58b03d988ca",
    "rng.uniform": "79571c5890a5e436",
    "rnn.recur": "b800c1f2a33c0d93",
    "sac.learn": "983870c9e6e83375",
    "td3.learn": "0dd0ee05c34feacf",
}
