"""Sentences that name what a user of Stable-Baselines3 has meant."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest
import torch

from headrace.sb3 import PPO, SAC, BaseFeaturesExtractor, RecurrentPPO

SMALL = {"n_steps": 16, "batch_size": 16, "device": "cpu", "seed": 0}


@pytest.mark.parametrize(("given", "meant"), [("netarch", "net_arch"), ("activation", "activation_fn")])
@pytest.mark.parametrize("kind", [PPO, SAC])
def test_a_misspelt_key_of_policy_kwargs_names_the_right_one(kind, given, meant):
    with pytest.raises(
        ValueError, match=rf"policy_kwargs has {given}=\[64\], .*: leave it out; did you mean '{meant}'"
    ):
        kind("MlpPolicy", "Pendulum-v1", policy_kwargs={given: [64]})


@pytest.mark.parametrize(("key", "value"), [("full_std", False), ("gadget", 1)])
def test_a_key_that_is_right_or_like_none_names_no_other(key, value):
    with pytest.raises(ValueError, match=rf"{key}={value}, which has no counterpart: leave it out$"):
        PPO("MlpPolicy", "Pendulum-v1", policy_kwargs={key: value})


@pytest.mark.parametrize("name", ["MlpLstmPolicy", "CnnLstmPolicy"])
def test_policies_with_an_lstm_are_recurrent_ppos(name):
    with pytest.raises(ValueError, match=f"got '{name}'; RecurrentPPO takes it"):
        PPO(name, "CartPole-v1")
    with pytest.raises(ValueError, match=r"got 'MyPolicy'; for your own network use headrace\.Trainer"):
        PPO("MyPolicy", "CartPole-v1")


def test_a_file_that_is_no_zip_or_damaged_is_said_once(tmp_path):
    path = tmp_path / "junk.zip"
    path.write_bytes(b"junk")
    with pytest.raises(ValueError, match=r"junk\.zip holds no model, the file wasn't a zip-file; give one") as raised:
        PPO.load(path)
    assert str(raised.value).removeprefix(str(path)).count("zip") == 1
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("headrace.json", b"contents" * 9)
    path.write_bytes(path.read_bytes().replace(b"contents", b"spoiled!", 1))
    with pytest.raises(ValueError, match="the file is damaged: Bad CRC"):
        PPO.load(path)


class Twice(BaseFeaturesExtractor):
    def __init__(self, observation_space, features_dim=4):
        super().__init__(observation_space, features_dim)
        self.layer = torch.nn.Linear(observation_space.shape[0], features_dim)

    def forward(self, observations):
        return self.layer(observations)


def test_a_file_of_an_extractor_shows_the_form_that_load_takes(tmp_path):
    kwargs = {"features_extractor_class": Twice}
    PPO("MlpPolicy", "CartPole-v1", policy_kwargs=kwargs, **SMALL).save(tmp_path / "m")
    with pytest.raises(ValueError, match=r"load\(\) policy_kwargs=dict\(features_extractor_class=\.\.\.\) again"):
        PPO.load(tmp_path / "m")
    assert PPO.load(tmp_path / "m", policy_kwargs=kwargs).policy_kwargs == kwargs


def test_a_tuple_of_states_is_refused_in_words():
    model = RecurrentPPO("MlpLstmPolicy", "CartPole-v1", policy_kwargs={"lstm_hidden_size": 8}, **SMALL)
    seen = np.ones((2, 4), np.float32)
    _, state = model.predict(seen)
    assert isinstance(state, np.ndarray) and state.shape == (2, model.policy.state_width)
    pair = (np.zeros((1, 2, 8), np.float32), np.zeros((1, 2, 8), np.float32))
    with pytest.raises(TypeError, match=rf"a tuple of 2, as in sb3-contrib, .* one array \[N, {state.shape[1]}\]"):
        model.predict(seen, pair)
    again = model.predict(seen, state, np.array([False, True]), deterministic=True)[1]
    assert again.shape == state.shape and not np.array_equal(again[0], again[1])
