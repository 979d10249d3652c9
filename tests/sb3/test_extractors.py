"""features_extractor_class: features are those of the user's module, are learned and saved."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from torch import nn

from headrace.bindings.collecting.compiled_collecting import program_of
from headrace.core.fused import plain_only
from headrace.sb3 import A2C, DDPG, DQN, PPO, QRDQN, SAC, TD3, TQC, TRPO, BaseFeaturesExtractor, CrossQ, RecurrentPPO
from headrace.sb3.zoo.entries import settings

OFF = {"buffer_size": 200, "learning_starts": 8, "batch_size": 8, "train_freq": 4, "gradient_steps": 1}
ON = {"n_steps": 16}
MODELS = {
    **{PPO: (ON | {"batch_size": 16}, True), A2C: (ON, True), TRPO: (ON | {"batch_size": 16}, False)},
    **{DQN: (OFF, True), QRDQN: (OFF, True)},
    **{kind: (OFF, False) for kind in (SAC, TD3, DDPG, TQC, CrossQ)},
    RecurrentPPO: (ON | {"batch_size": 16}, True),
}


class Seen(gymnasium.Env):
    """Observations of any space."""

    def __init__(self, space, discrete=True):
        self.observation_space, self.action_space = space, Discrete(2) if discrete else Box(-1.0, 1.0, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        return self.observation_space.sample(), 1.0, False, self.steps >= 5, {}


class Features(BaseFeaturesExtractor):
    """A linear layer on all numbers of an observation."""

    def __init__(self, observation_space, features_dim=6):
        super().__init__(observation_space, features_dim)
        self.made_for = observation_space
        spaces = observation_space.spaces if isinstance(observation_space, Dict) else {"": observation_space}
        self.inputs = sum(gymnasium.spaces.flatdim(space) for space in spaces.values())
        self.linear, self.seen = nn.Linear(self.inputs, features_dim), None

    def forward(self, observations):
        parts = observations.values() if isinstance(observations, dict) else [observations]
        assert all(part.dtype == torch.float32 for part in parts)
        self.seen = torch.cat([part.flatten(1) for part in parts], 1)
        return torch.tanh(self.linear(self.seen))


KWARGS = {"features_extractor_class": Features, "features_extractor_kwargs": {"features_dim": 6}}


@pytest.mark.parametrize("kind", MODELS)
def test_models_learn_it_save_it_and_go_on(kind, tmp_path):
    own, discrete = MODELS[kind]
    env = Seen(Box(-1.0, 1.0, (3,)), discrete)
    kwargs = KWARGS | ({"lstm_hidden_size": 8} if kind is RecurrentPPO else {"net_arch": [8]})
    policy = "MlpLstmPolicy" if kind is RecurrentPPO else "MlpPolicy"
    with plain_only():
        model = kind(policy, env, seed=0, policy_kwargs=kwargs, **own)
        (found,) = [part for part in model.policy.modules() if isinstance(part, Features)]
        before = found.linear.weight.detach().clone()
        model.learn(40)
        changed = not torch.equal(found.linear.weight, before)
        assert changed and found.linear.weight.shape == (6, 3)
        model.save(tmp_path / "model")
        with pytest.raises(ValueError, match=r"features_extractor_class of its own: give load\(\) policy_kwargs"):
            kind.load(tmp_path / "model")
        other = kind.load(tmp_path / "model", env=env, policy_kwargs=kwargs)
        seen = np.stack([env.observation_space.sample() for _ in range(4)])
        assert np.array_equal(*(one.predict(seen, deterministic=True)[0] for one in (model, other)))
        other.learn(8, reset_num_timesteps=False)


@pytest.mark.parametrize(
    ("space", "policy"),
    [
        (Box(-1.0, 1.0, (2, 3)), "MlpPolicy"),
        (Discrete(4), "MlpPolicy"),
        (MultiDiscrete([2, 3]), "MlpPolicy"),
        (MultiBinary(3), "MlpPolicy"),
        (Box(0, 255, (40, 36, 3), np.uint8), "CnnPolicy"),
        (Box(0, 255, (3, 40, 36), np.uint8), "CnnPolicy"),
        (Dict({"a": Box(-1.0, 1.0, (2,)), "b": Box(-1.0, 1.0, (3, 1))}), "MultiInputPolicy"),
        (Dict({"a": Discrete(3), "image": Box(0, 255, (40, 36, 1), np.uint8)}), "MultiInputPolicy"),
    ],
)
def test_it_is_given_observations_as_stable_baselines3_gives_them(space, policy):
    env = Seen(space)
    with plain_only():
        model = PPO(policy, env, seed=0, n_steps=8, batch_size=8, policy_kwargs=KWARGS)
        model.learn(8)
        one = space.sample()
        model.predict(one)
    features = model.policy.encoder.extractor
    parts = one.items() if isinstance(space, Dict) else [("", one)]
    wanted = []
    for name, part in parts:
        own = space[name] if name else space
        if isinstance(own, Box) and own.dtype == np.uint8:
            part = part if own.shape[0] == 3 else part.transpose(2, 0, 1)
            wanted.append(part.reshape(-1) / np.float32(255))
        else:
            wanted.append(gymnasium.spaces.flatten(own, part).reshape(-1))
    assert np.allclose(np.sort(features.seen[-1].numpy()), np.sort(np.concatenate(wanted)), atol=1e-6)
    if not isinstance(space, Dict):
        assert np.allclose(features.seen[-1].numpy(), np.concatenate(wanted), atol=1e-6)


@pytest.mark.parametrize("kind", [PPO, DQN, SAC])
@pytest.mark.parametrize("channels_last", [True, False])
def test_kwargs_alone_are_those_of_the_usual_extractors(kind, channels_last, tmp_path):
    image = Box(0, 255, (40, 36, 3) if channels_last else (3, 40, 36), np.uint8)
    both = Dict({"image": image, "vector": Box(-1.0, 1.0, (2, 2))})
    own, discrete = MODELS[kind]
    for space, policy, kwargs, size in (
        (image, "CnnPolicy", {"features_dim": 9}, 9),
        (both, "MultiInputPolicy", {"cnn_output_dim": 7}, 11),
    ):
        env, kwargs = Seen(space, discrete), {"features_extractor_kwargs": kwargs, "net_arch": [8]}
        with plain_only():
            model = kind(policy, env, seed=0, policy_kwargs=kwargs, **own).learn(24)
            assert model.policy.encoder.size == size and model.policy.encoder.extractor.features_dim == size
            model.save(tmp_path / "model")
            other = kind.load(tmp_path / "model", env=env)  # whose kwargs are in the file
            one = env.observation_space.sample()
            assert np.array_equal(*(each.predict(one, deterministic=True)[0] for each in (model, other)))


def test_the_same_seed_gives_the_same_features_and_ppo_has_orthogonal_ones():
    env = Seen(Box(-1.0, 1.0, (3,)))
    models = [PPO("MlpPolicy", env, seed=seed, n_steps=8, batch_size=8, policy_kwargs=KWARGS) for seed in (1, 1, 2)]
    first, again, other = (model.policy.encoder.extractor.linear.weight for model in models)
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.allclose(first.t() @ first, 2 * torch.eye(3), atol=1e-5)
    model = PPO("MlpPolicy", env, n_steps=8, batch_size=8, policy_kwargs=KWARGS | {"ortho_init": False})
    weight = model.policy.encoder.extractor.linear.weight
    assert not torch.allclose(weight.t() @ weight, 2 * torch.eye(3), atol=1e-2)


def test_what_is_refused(tmp_path):
    env = Seen(Box(-1.0, 1.0, (3,)))
    for wrong in (nn.Identity, lambda space: 5):
        with pytest.raises(TypeError, match="features_dim"):
            PPO("MlpPolicy", env, policy_kwargs={"features_extractor_class": wrong, "features_extractor_kwargs": {}})
    with pytest.raises(ValueError, match="share_features_extractor"):
        PPO("MlpPolicy", env, policy_kwargs=KWARGS | {"share_features_extractor": False})
    with pytest.raises(ValueError, match="features_dim must be 1 or more"):
        Features(env.observation_space, 0)
    model = PPO("MlpPolicy", env, n_steps=8, batch_size=8, policy_kwargs=KWARGS)
    with pytest.raises(ValueError, match="no features extractor"):
        model.save(tmp_path / "model", format="sb3")
    with pytest.raises(ValueError, match=r"features_extractor_kwargs.* has no counterpart"):
        PPO("MlpPolicy", env, policy_kwargs={"features_extractor_kwargs": {"features_dim": 3}})
    entry = "Pendulum-v1: {policy: MlpPolicy, policy_kwargs: 'dict(features_extractor_kwargs=dict(features_dim=3))'}"
    (tmp_path / "ppo.yml").write_text(entry)
    with pytest.raises(ValueError, match=r"policy_kwargs has features_extractor_kwargs, which models of headrace\.sb3"):
        settings(tmp_path / "ppo.yml", "ppo", "Pendulum-v1")


class Wrong(BaseFeaturesExtractor):
    """A layer of other size than it says, that reads a key, or that is given numbers which it does not take."""

    def __init__(self, observation_space, says=6, gives=6, takes=3, key=None):
        super().__init__(observation_space, says)
        self.linear, self.norm, self.key = nn.Linear(takes, gives), nn.BatchNorm1d(gives).eval(), key

    def forward(self, observations):
        return self.norm(self.linear(observations if self.key is None else observations[self.key]))


def test_features_are_tried_when_the_model_is_made():
    vector, parts = Box(-1.0, 1.0, (3,)), Dict({"near": Box(-1.0, 1.0, (3,)), "far": Discrete(4, start=2)})

    def made(space, **own):
        kwargs = {"features_extractor_class": Wrong, "features_extractor_kwargs": own}
        policy = "MultiInputPolicy" if space is parts else "MlpPolicy"
        return PPO(policy, Seen(space), n_steps=8, batch_size=8, policy_kwargs=kwargs)

    with pytest.raises(
        ValueError, match=r"Wrong has features_dim=9, and its features of two observations are \[2, 6\]"
    ):
        made(vector, says=9)
    with pytest.raises(ValueError, match=r"Wrong reads observations\['middle'\], and observations have far, near"):
        made(parts, key="middle")
    with pytest.raises(RuntimeError) as error:
        made(vector, takes=4)
    assert "Wrong was tried with two observations, [2, 3]" in error.value.__notes__[0]
    model = made(parts, key="near", says=6)
    norm = model.policy.encoder.extractor.norm
    assert not norm.training and model.policy.encoder.extractor.linear.training
    assert norm.running_mean.tolist() == [0.0] * 6 and norm.num_batches_tracked == 0


def test_a_file_keeps_the_rest_of_policy_kwargs_and_says_once_what_it_lacks(tmp_path, capsys):
    env, adam = Seen(Box(-1.0, 1.0, (3,))), {"optimizer_class": torch.optim.Adam, "optimizer_kwargs": {"eps": 1e-6}}
    own = KWARGS | {"net_arch": [7, 5], "activation_fn": nn.ELU} | adam
    model = PPO("MlpPolicy", env, n_steps=8, batch_size=8, policy_kwargs=own)
    for _ in range(3):  # as an EvalCallback does
        model.save(tmp_path / "model")
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "features_extractor_class" in said and "features_extractor_kwargs" in said
    loaded = PPO.load(tmp_path / "model", policy_kwargs=KWARGS)
    assert loaded.arguments["policy_kwargs"] == own
    for other, message in (
        ({"net_arch": [7, 4]}, r"actor\.layers\.1\.weight is \[5, 7\] there and \[4, 7\] here"),
        ({"features_extractor_kwargs": {"features_dim": 4}}, r"linear\.weight is \[6, 3\] there and \[4, 3\] here"),
        ({"features_extractor_class": Wrong, "features_extractor_kwargs": {}}, r"norm\.weight is none there and \[6\]"),
    ):
        with pytest.raises(ValueError, match=f"the file has other networks than policy_kwargs describe.*{message}"):
            PPO.load(tmp_path / "model", policy_kwargs=KWARGS | other)


class Linear(BaseFeaturesExtractor):
    def __init__(self, observation_space, features_dim=6):
        super().__init__(observation_space, features_dim)
        self.linear = nn.Linear(observation_space.shape[0], features_dim)

    def forward(self, observations):
        return torch.tanh(self.linear(observations))


def test_collecting_with_it_is_compiled():
    kwargs = {"features_extractor_class": Linear}
    model = PPO("MlpPolicy", "CartPole-v1", seed=0, n_steps=8, batch_size=8, policy_kwargs=kwargs)
    with torch.no_grad():
        found = program_of(model._trainer.collector)
    assert found is not None and not isinstance(found, str), found
