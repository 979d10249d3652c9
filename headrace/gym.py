"""Registers the built-in environments with Gymnasium, as headrace/CartPole-v1 and so on.

Gymnasium loads no plugins of its own accord: importing this module, or naming it in an id, registers them. Importing
headrace after gymnasium does so too.

    gymnasium.make_vec("headrace.gym:headrace/CartPole-v1", num_envs=1024)
    gymnasium.make("headrace.gym:headrace/CartPole-v1", render_mode="rgb_array")

Imports nothing but Gymnasium, since an id may be looked up before anything else of Headrace is needed.
"""

from __future__ import annotations

from gymnasium.envs.registration import register

MAX_STEPS = {  # of environments of one agent: steps until an episode is truncated
    "CartPole-v1": 500,
    "Acrobot-v1": 500,
    "Pendulum-v1": 200,
    "MountainCar-v0": 200,
    "MountainCarContinuous-v0": 999,
    "Catch": None,
    "GridWorld": 100,
    "PixelCatch": None,
    "PixelPendulum": 200,
    "ConnectFour": None,
    "BitFlip": 30,
    "Switchback": 200,
    "Reach": 50,
    "IonTrap": 500,
    "CartPoleHidden": 500,
    "PendulumHidden": 200,
}
MAKERS = "headrace.envs.vector_env.construct_vector"

for _name, _max_steps in MAX_STEPS.items():
    register(
        f"headrace/{_name}",
        entry_point=f"{MAKERS}:make_registered",
        vector_entry_point=f"{MAKERS}:make_registered_vec",
        max_episode_steps=_max_steps,
        kwargs={"source": _name},
    )
