"""Error in place of stable_baselines3.common, which says what to import."""

raise ImportError(
    "headrace.sb3 has no common: import make_vec_env, VecEnv and BaseFeaturesExtractor from headrace.sb3, and keep "
    "`from stable_baselines3.common... import` of callbacks, Monitor, VecNormalize and others: its models use them"
)
