"""Rollouts: layout of columns, slices that are views, the bootstrap row, groups."""

import pytest
import torch

from headrace.data.rollout import Column, Rollout, flatten, tree_map

COLUMNS = {
    "observation": {
        "vector": Column((3,), bootstrap=True, feature_major=True),
        "image": Column((4, 5), torch.uint8, bootstrap=True),
    },
    "valid": Column(dtype=torch.bool, bootstrap=True),
    "reward": Column(),
    "action": Column((2,), feature_major=True),
}


@pytest.fixture
def rollout():
    return Rollout(6, 8, COLUMNS)


def test_bootstrap_columns_have_one_more_row(rollout):
    assert rollout.observation.vector.shape == (7, 8, 3)
    assert rollout.observation.image.shape == (7, 8, 4, 5)
    assert rollout.valid.shape == (7, 8)
    assert rollout.reward.shape == (6, 8)


def test_feature_major_vectors_lie_side_by_side_over_worlds(rollout):
    assert rollout.observation.vector.permute(2, 0, 1).is_contiguous()
    assert rollout.observation.image.is_contiguous()


def test_flatten_is_a_view_in_either_layout(rollout):
    flat = flatten(rollout.observation[:6])
    rollout.observation.vector[2, 3] = torch.tensor([1.0, 2.0, 3.0])
    rollout.observation.image[5, 7] = 9
    assert flat.vector.shape == (48, 3)
    assert flat.vector[2 * 8 + 3].tolist() == [1.0, 2.0, 3.0]
    assert (flat.image[-1] == 9).all()


def test_a_slice_is_a_view_and_keeps_the_row_after_its_last_step(rollout):
    part = rollout[2:4, 1:5]
    assert (part.num_steps, part.num_envs) == (2, 4)
    assert part.observation.vector.shape == (3, 4, 3)
    part.reward[0, 0] = 5.0
    assert rollout.reward[2, 1] == 5.0
    assert rollout[:3].num_envs == 8


def test_a_slice_with_a_stride_is_refused(rollout):
    with pytest.raises(ValueError, match="steps of 1"):
        rollout[::2]


def test_the_bootstrap_row_becomes_the_first_row(rollout):
    rollout.observation.vector[6] = 2.0
    rollout.valid[6, 3] = True
    rollout.reward[5] = 7.0
    rollout.continue_from(rollout)
    assert (rollout.observation.vector[0] == 2.0).all()
    assert rollout.valid[0].tolist() == [False] * 3 + [True] + [False] * 4
    assert (rollout.reward[0] == 0.0).all()


def test_another_rollout_continues_from_one(rollout):
    other = Rollout(4, 8, COLUMNS)
    rollout.observation.vector[6], rollout.valid[6, 3] = 2.0, True
    other.continue_from(rollout)
    assert (other.observation.vector[0] == 2.0).all() and other.valid.sum() == other.valid[0, 3] == 1
    assert not rollout.observation.vector[0].any()


def test_valid_steps_does_not_count_the_bootstrap_row(rollout):
    rollout.valid[:] = True
    rollout.valid[1, 2] = False
    assert rollout.valid_steps() == 47


def test_the_same_device_gives_the_rollout_itself_and_another_a_copy_in_the_same_layout(rollout):
    assert rollout.to("cpu") is rollout
    other = rollout.to("meta")
    assert other.observation.vector.device.type == "meta"
    assert other.observation.vector.stride() == rollout.observation.vector.stride()


def test_an_unknown_column_is_named_with_those_that_are_there(rollout):
    with pytest.raises(AttributeError, match=r"no column 'rewards'; it has observation, valid, reward, action"):
        _ = rollout.rewards


@pytest.mark.parametrize(("steps", "envs"), [(0, 1), (1, 0)])
def test_an_empty_rollout_is_refused(steps, envs):
    with pytest.raises(ValueError, match="at least one step and one env"):
        Rollout(steps, envs, COLUMNS)


def test_groups_are_indexed_and_assigned_member_by_member(rollout):
    row = rollout.observation[1]
    rollout.observation[0] = tree_map(lambda x: x + 1, row)
    assert (rollout.observation.vector[0] == 1.0).all() and (rollout.observation.image[0] == 1).all()
    assert tree_map(lambda x: x, None) is None
