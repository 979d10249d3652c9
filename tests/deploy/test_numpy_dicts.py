"""Exported to NumPy, a policy of a Dict that is one vector to it takes the dict as well."""

import numpy as np

import headrace as hr
from headrace.data.flat_dict import FlatDict
from headrace.deploy.numpy_writer import load


def test_a_dict_of_vectors_may_be_given_to_numpy_as_it_is(tmp_path):
    members = {"goal": hr.Box(-1, 1, (2,)), "action_mask": hr.MultiBinary(5), "observation": hr.Box(-1, 1, (5,))}
    policy = hr.ActorCritic(FlatDict(members), hr.MultiDiscrete([2, 3]), (8,), seed=4)
    written = hr.export(policy, "numpy", tmp_path / "brain.py").path
    exported, generator = load(written.read_bytes()), np.random.default_rng(5)
    for rows in ((), (1,), (65,)):
        parts = {"goal": generator.normal(size=(*rows, 2)), "action_mask": np.ones((*rows, 5), np.int8)}
        parts["observation"] = generator.normal(size=(*rows, 5)).astype(np.float32)
        parts["action_mask"][..., 1] = 0
        actions = exported.predict(parts)[0]
        assert np.array_equal(actions, policy.predict(parts)[0]) and actions.shape == (*rows, 2)
        assert np.array_equal(actions, exported.predict(policy.observation_space.join(parts))[0])
