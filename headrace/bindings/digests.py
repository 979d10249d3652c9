"""Digests of the plain functions that the kernels were written after, with all that they reach (core.closure).

Where tests/bindings/test_digests.py says that one differs: bring the kernels after the source, see that their tests
pass, and run `python tests/bindings/test_digests.py`, which writes the new ones.
"""

DIGESTS = {
    "actor_critic.act": "2e3325c6e9345d9c",
    "actor_critic.value": "ff7be471b1fd80d9",
    "collector.steps": "4b4a8e357a6138a8",
    "ddpg.learn": "f0366a83dc22a400",
    "dqn.learn": "9c1878609fcae310",
    "ppo.learn": "e3f77fa0cd9e7df2",
    "returns.explained_variance": "433d6b7593f2a7ae",
    "returns.gae": "a2cce58b03d988ca",
    "rng.uniform": "79571c5890a5e436",
    "rnn.recur": "b800c1f2a33c0d93",
    "sac.learn": "125c33e4c42d6c75",
    "td3.learn": "17041dd845710c38",
}
