"""The interface of Stable-Baselines3 on Headrace: `from headrace.sb3 import PPO`. This module only has names."""

from typing import TYPE_CHECKING, NoReturn

from headrace.sb3.contrib import DDPG as DDPG
from headrace.sb3.contrib import QRDQN as QRDQN
from headrace.sb3.contrib import TQC as TQC
from headrace.sb3.contrib import TRPO as TRPO
from headrace.sb3.contrib import CrossQ as CrossQ
from headrace.sb3.contrib import RecurrentPPO as RecurrentPPO
from headrace.sb3.extractors import BaseFeaturesExtractor as BaseFeaturesExtractor
from headrace.sb3.members import not_offered
from headrace.sb3.models import A2C as A2C
from headrace.sb3.models import DQN as DQN
from headrace.sb3.models import PPO as PPO
from headrace.sb3.models import SAC as SAC
from headrace.sb3.models import TD3 as TD3
from headrace.sb3.vec_env import VecEnv as VecEnv
from headrace.sb3.vec_env import make_vec_env as make_vec_env

if not TYPE_CHECKING:  # so that a type checker still finds names that there are not

    def __getattr__(name: str) -> NoReturn:
        raise not_offered(name)
