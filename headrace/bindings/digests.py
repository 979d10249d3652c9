"""Digests of the plain functions that the kernels were written after, with all that they reach (core.closure).

Where tests/bindings/test_digests.py says that one differs: bring the kernels after the source, see that their tests
pass, and run `python tests/bindings/test_digests.py`, which writes the new ones.
"""

DIGESTS = {
    "actor_critic.act": "6905660122e6015d",
    "actor_critic.value": "5385ea3131132b03",
    "collector.steps": "4b4a8e357a6138a8",
    "ddpg.learn": "09dcd541413997cc",
    "dqn.learn": "36caea3d62973809",
    "ppo.learn": "b238d0cb4ede51bd",
    "returns.explained_variance": "433d6b7593f2a7ae",
    "returns.gae": "a2cce58b03d988ca",
    "rng.uniform": "79571c5890a5e436",
    "rnn.recur": "b800c1f2a33c0d93",
    "sac.learn": "b446c5ac3033e5e8",
    "td3.learn": "b36c98f6e2193e83",
}
