"""Advantages and returns: by hand, against an obvious loop, and the compiled kernel against the plain function."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.bindings import rng_returns_cpu
from headrace.core import fused
from headrace.core.returns import discounted_returns, explained_variance, gae, lambda_returns, n_step_returns, vtrace


def column(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype).unsqueeze(1)


NO = column(0, 0, 0, 0, dtype=torch.bool)


def test_gae_by_hand_with_a_termination_and_a_dead_row():
    # gamma = lambda = 0.5; the episode ends at t = 1, row 2 is dead, row 3 begins the next one
    reward, value = column(1.0, 2.0, 0.0, 3.0), column(4.0, 8.0, 99.0, 2.0)
    next_value = column(8.0, 99.0, 2.0, 6.0)
    terminated = column(0, 1, 0, 0, dtype=torch.bool)
    advantage = gae(reward, value, next_value, terminated, NO, 0.5, 0.5)
    # t = 3: 3 + 0.5 * 6 - 2 = 4
    # t = 1: 2 + 0 - 8 = -6, whatever comes after
    # t = 0: 1 + 0.5 * 8 - 4 = 1, and 0.5 * 0.5 * -6 = -1.5 of t = 1: -0.5
    assert advantage[[0, 1, 3], 0].tolist() == [-0.5, -6.0, 4.0]


def test_gae_by_hand_with_a_truncation():
    # as above, but cut off at t = 1: the final observation, seen in row 2, has value 10
    reward, value = column(1.0, 2.0, 0.0, 3.0), column(4.0, 8.0, 10.0, 2.0)
    next_value = column(8.0, 10.0, 2.0, 6.0)
    truncated = column(0, 1, 0, 0, dtype=torch.bool)
    advantage = gae(reward, value, next_value, NO, truncated, 0.5, 0.5)
    # t = 1: 2 + 0.5 * 10 - 8 = -1; t = 0: 1 + 0.5 * 8 - 4 + 0.25 * -1 = 0.75
    assert advantage[[0, 1, 3], 0].tolist() == [0.75, -1.0, 4.0]


def test_discounted_returns_by_hand():
    reward, next_value = column(1.0, 2.0, 4.0, 8.0), column(50.0, 10.0, 70.0, 16.0)
    terminated = column(0, 0, 1, 0, dtype=torch.bool)
    truncated = column(0, 1, 0, 0, dtype=torch.bool)
    # t = 3: 8 + 16 / 2 = 16; t = 2: ends, 4; t = 1: cut off, 2 + 10 / 2 = 7; t = 0: 1 + 7 / 2 = 4.5
    assert discounted_returns(reward, next_value, terminated, truncated, 0.5).flatten().tolist() == [
        4.5,
        7.0,
        4.0,
        16.0,
    ]


def test_discounted_returns_are_advantages_over_nothing():
    data = random_rollout(3, 20, 7)
    reward, value, next_value, terminated, truncated = data
    whole = gae(*data, 0.9, 1.0) + value
    torch.testing.assert_close(whole, discounted_returns(reward, next_value, terminated, truncated, 0.9))


def test_explained_variance():
    target, valid = torch.tensor([1.0, 2.0, 3.0, 99.0]), torch.tensor([True, True, True, False])
    assert explained_variance(target + 5, target, valid) == 1
    assert explained_variance(torch.zeros(4), target, valid) == 0
    assert explained_variance(torch.tensor([1.0, 2.0, 0.0, 0.0]), target, valid) == pytest.approx(-2)
    assert explained_variance(target, torch.ones(4), valid) == 0  # a number, for NaN would stop the run


@pytest.mark.parametrize("number", [0.1, 1 / 3, 7.7, 123.456, 1e6 / 3])
@pytest.mark.parametrize("shape", [(1, 1), (24, 12), (2048, 3)])
def test_what_does_not_vary_is_not_explained(number, shape):
    for dtype in (torch.float32, torch.float64):
        target, valid = torch.full(shape, number, dtype=dtype), torch.ones(shape, dtype=torch.bool)
        for function in (explained_variance, explained_variance.plain):
            assert function(target + torch.linspace(-1, 1, shape[1]), target, valid) == 0


def test_a_variance_much_smaller_than_the_mean_is_explained():
    generator = torch.Generator().manual_seed(0)
    noise = 1e-3 * torch.randn(64, 8, generator=generator)
    target, valid = 1000 + 2e-3 * torch.randn(64, 8, generator=generator), torch.ones(64, 8, dtype=torch.bool)
    prediction = target - noise
    error = (target - prediction).double().var(correction=0) / target.double().var(correction=0)
    assert explained_variance.plain(prediction, target, valid) == pytest.approx(1 - float(error), abs=1e-6)


@pytest.mark.parametrize("anything", [torch.inf, -torch.inf, torch.nan])
def test_rows_that_are_not_valid_explain_nothing_whatever_they_are(anything):
    target, valid = torch.arange(12.0).view(3, 4), torch.ones(3, 4, dtype=torch.bool)
    prediction, valid[1, 2] = target * 0.5, False
    expected = explained_variance.plain(prediction, target, valid)
    target[1, 2] = anything
    for function in (explained_variance, explained_variance.plain):
        assert function(prediction, target, valid) == pytest.approx(expected.item(), rel=1e-6)


def test_shapes_that_differ_are_named():
    with pytest.raises(ValueError, match=r"value has shape \(5, 1\), reward \(4, 1\).*\[:-1\]"):
        gae(NO.float(), torch.zeros(5, 1), NO.float(), NO, NO, 0.9, 0.9)


def random_rollout(seed, steps, envs, ending=0.2):
    """Columns with next-step autoreset: after an ending a masked step, without reward or flags."""
    random = np.random.default_rng(seed)
    reward = random.normal(size=(steps, envs)).astype(np.float32)
    value = random.normal(size=(steps + 1, envs)).astype(np.float32)
    ended = random.random((steps, envs)) < ending
    for t in range(1, steps):
        ended[t] &= ~ended[t - 1]
        reward[t][ended[t - 1]] = 0
    terminated = ended & (random.random((steps, envs)) < 0.5)
    return [torch.from_numpy(x) for x in (reward, value[:-1], value[1:], terminated, ended & ~terminated)]


def advantage_of_one_episode(reward, value, bootstrap, gamma, gae_lambda):
    """Eq. 16 of the paper, as a sum of temporal differences over the rest of the episode, in float64."""
    values = np.append(value, bootstrap)
    delta = reward + gamma * values[1:] - values[:-1]
    steps = range(len(reward))
    return [sum((gamma * gae_lambda) ** (k - t) * delta[k] for k in steps[t:]) for t in steps]


@given(
    seed=st.integers(0, 10**6),
    steps=st.integers(1, 30),
    envs=st.integers(1, 5),
    ending=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    gamma=st.sampled_from([0.0, 0.9, 0.99, 1.0]),
    gae_lambda=st.sampled_from([0.0, 0.95, 1.0]),
)
@settings(max_examples=40)
def test_gae_equals_a_sum_over_each_episode(seed, steps, envs, ending, gamma, gae_lambda):
    data = random_rollout(seed, steps, envs, ending)
    advantage = gae(*data, gamma, gae_lambda).numpy()
    reward, value, next_value, terminated, truncated = (x.numpy().astype(np.float64) for x in data)
    for n in range(envs):
        start = 0
        while start < steps:
            ends = [t for t in range(start, steps) if terminated[t, n] or truncated[t, n]]
            last = ends[0] if ends else steps - 1
            rows = slice(start, last + 1)
            bootstrap = 0.0 if terminated[last, n] else next_value[last, n]
            expected = advantage_of_one_episode(reward[rows, n], value[rows, n], bootstrap, gamma, gae_lambda)
            np.testing.assert_allclose(advantage[rows, n], expected, rtol=2e-5, atol=2e-5)
            start = last + 2  # the row after an ending is dead


@pytest.mark.parametrize(("steps", "envs"), [(1, 1), (7, 3), (40, 130)])
def test_the_kernel_gives_the_plain_functions_bits(steps, envs):
    data = random_rollout(1, steps, envs)
    assert torch.equal(rng_returns_cpu.gae(*data, 0.99, 0.95), gae.plain(*data, 0.99, 0.95))


def test_the_kernel_reads_slices_of_columns():
    whole = random_rollout(2, 12, 40)
    part = [x[2:9, 5:21] for x in whole]
    assert torch.equal(rng_returns_cpu.gae(*part, 0.99, 0.95), gae.plain(*(x.clone() for x in part), 0.99, 0.95))


def test_what_the_kernel_cannot_serve_takes_the_plain_path():
    data = random_rollout(1, 5, 4)
    doubles = [x.double() if x.is_floating_point() else x for x in data]
    assert gae(*doubles, 0.99, 0.95).dtype == torch.float64
    turned = [x.t().contiguous().t() for x in data]
    torch.testing.assert_close(gae(*turned, 0.99, 0.95), gae(*data, 0.99, 0.95))


def episodes(terminated, truncated):
    """(env, first row, one past the last row, kind of ending) of each episode's rows; masked steps are left out."""
    steps, envs = terminated.shape
    for n in range(envs):
        start = 0
        while start < steps:
            ends = [t for t in range(start, steps) if terminated[t, n] or truncated[t, n]]
            last = ends[0] if ends else steps - 1
            yield n, start, last + 1, bool(terminated[last, n])
            start = last + 2


RANDOM = {
    "seed": st.integers(0, 10**6),
    "steps": st.integers(1, 20),
    "envs": st.integers(1, 4),
    "ending": st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    "gamma": st.sampled_from([0.0, 0.9, 1.0]),
}


@given(**RANDOM, ahead=st.integers(1, 8))
@settings(max_examples=40)
def test_n_step_returns_equal_a_sum_over_the_next_rows(seed, steps, envs, ending, gamma, ahead):
    reward, _, next_value, terminated, truncated = data = random_rollout(seed, steps, envs, ending)
    got = n_step_returns(reward, next_value, terminated, truncated, gamma, ahead)
    reward, _, next_value, terminated, truncated = (x.numpy().astype(np.float64) for x in data)
    for n, start, stop, terminates in episodes(terminated, truncated):
        for t in range(start, stop):
            last = min(t + ahead, stop) - 1
            future = 0.0 if terminates and last == stop - 1 else next_value[last, n]
            rewards = sum(gamma ** (k - t) * reward[k, n] for k in range(t, last + 1))
            assert got[t, n] == pytest.approx(rewards + gamma ** (last + 1 - t) * future, rel=2e-5, abs=2e-5)


@given(**RANDOM, mix=st.sampled_from([0.0, 0.3, 0.95, 1.0]))
@settings(max_examples=40)
def test_lambda_returns_are_the_weighted_n_step_returns(seed, steps, envs, ending, gamma, mix):
    reward, _, next_value, terminated, truncated = data = random_rollout(seed, steps, envs, ending)
    got = lambda_returns(reward, next_value, terminated, truncated, gamma, mix)
    looks = [n_step_returns(data[0].double(), data[2].double(), *data[3:], gamma, n + 1) for n in range(steps)]
    for n, start, stop, _ in episodes(terminated.numpy(), truncated.numpy()):
        for t in range(start, stop):
            left = stop - t  # eq. 12.3: all the weight that is left goes to the longest return
            expected = sum((1 - mix) * mix**k * looks[k][t, n] for k in range(left - 1))
            expected += mix ** (left - 1) * looks[left - 1][t, n]
            assert got[t, n] == pytest.approx(float(expected), rel=2e-5, abs=2e-5)


def vtrace_of_one_episode(ratio, reward, value, future, gamma, gae_lambda, clip_rho, clip_c):
    """Targets and advantages of the rows of one episode, in float64: eq. 1 of the paper and section 4.2. future: the
    value after the last row."""
    rho = np.minimum(clip_rho, ratio)
    c = gae_lambda * np.minimum(clip_c, ratio)  # remark 2
    values, rows = np.append(value, future), range(len(reward))
    delta = [rho[t] * (reward[t] + gamma * values[t + 1] - values[t]) for t in rows]
    target = [values[s] + sum(gamma ** (t - s) * np.prod(c[s:t]) * delta[t] for t in rows[s:]) for s in rows]
    following = [(1 - gae_lambda) * values[t + 1] + gae_lambda * ([*target, future])[t + 1] for t in rows]
    return target, [rho[t] * (reward[t] + gamma * following[t] - values[t]) for t in rows]


@given(
    **RANDOM,
    gae_lambda=st.sampled_from([0.0, 0.7, 1.0]),
    clips=st.sampled_from([(0.5, 0.5), (1.0, 1.0), (2.0, 1.0), (np.inf, 1.0)]),
)
@settings(max_examples=60)
def test_vtrace_equals_its_definition(seed, steps, envs, ending, gamma, gae_lambda, clips):
    data = random_rollout(seed, steps, envs, ending)
    log_ratio = torch.from_numpy(np.random.default_rng(seed).normal(size=(steps, envs)).astype(np.float32))
    ended = (data[3] | data[4])[:-1]
    log_ratio[1:][ended] = 200.0  # a ratio of infinity in masked rows changes nothing
    found = vtrace(log_ratio, *data, gamma, gae_lambda, clip_rho=clips[0], clip_c=clips[1])
    reward, value, next_value, terminated, truncated = (x.numpy().astype(np.float64) for x in data)
    ratio = np.exp(log_ratio.numpy().astype(np.float64))
    for n, start, stop, terminates in episodes(terminated, truncated):
        rows = slice(start, stop), n
        future = 0.0 if terminates else next_value[stop - 1, n]
        expected = vtrace_of_one_episode(ratio[rows], reward[rows], value[rows], future, gamma, gae_lambda, *clips)
        for ours, theirs in zip(found, expected, strict=True):
            scale = max(1.0, np.abs(theirs).max())
            np.testing.assert_allclose(ours[rows].numpy() / scale, np.array(theirs) / scale, atol=1e-5)


@given(**RANDOM, gae_lambda=st.sampled_from([0.0, 0.7, 1.0]))
@settings(max_examples=40)
def test_vtrace_of_the_policy_itself_is_gae(seed, steps, envs, ending, gamma, gae_lambda):
    data = random_rollout(seed, steps, envs, ending)
    targets, advantages = vtrace(torch.zeros(steps, envs), *data, gamma, gae_lambda)
    expected = gae(*data, gamma, gae_lambda)
    torch.testing.assert_close(advantages, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(targets, data[1] + expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("steps", [1, 2, 12])
def test_vtrace_of_the_policy_itself_with_lambda_one_gives_discounted_and_n_step_returns(steps):
    reward, value, next_value, *ends = random_rollout(5, steps, 6)
    targets, advantages = vtrace(torch.zeros(steps, 6), reward, value, next_value, *ends, 0.9, 1.0)
    seen = torch.cat((torch.ones(1, 6, dtype=torch.bool), ~(ends[0] | ends[1])[:-1]))  # not masked
    n_step = n_step_returns(reward, next_value, *ends, 0.9, steps)
    torch.testing.assert_close(targets[seen], n_step[seen], rtol=1e-5, atol=1e-5)
    whole = discounted_returns(reward, next_value, *ends, 0.9)
    torch.testing.assert_close(targets[seen], whole[seen], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(advantages, targets - value, rtol=1e-5, atol=1e-5)


def test_vtrace_names_a_shape_that_differs():
    with pytest.raises(ValueError, match=r"log_ratio has shape \(3, 1\), reward \(4, 1\)"):
        vtrace(torch.zeros(3, 1), *[NO.float()] * 3, NO, NO, 0.9, 1.0)


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32, torch.uint8])
def test_flags_of_another_dtype_are_refused_by_name(dtype):
    reward, flags = NO.float(), NO.to(dtype)
    calls = [
        lambda: gae(reward, reward, reward, NO, flags, 0.9, 0.9),
        lambda: n_step_returns(reward, reward, NO, flags, 0.9, 2),
        lambda: lambda_returns(reward, reward, NO, flags, 0.9, 0.9),
        lambda: discounted_returns(reward, reward, NO, flags, 0.9),
        lambda: vtrace(reward, reward, reward, reward, NO, flags, 0.9, 1.0),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"truncated has the dtype torch\.\w+: flags are torch\.bool"):
            call()


def test_explained_variance_of_other_shapes_is_refused_not_broadcast():
    with pytest.raises(ValueError, match=r"target has shape \(5, 1\), prediction \(5,\): they must be equal"):
        explained_variance(torch.zeros(5), torch.zeros(5, 1), torch.ones(5, 1, dtype=torch.bool))


def test_returns_ahead_of_no_step_are_refused():
    with pytest.raises(ValueError, match="num_steps must be 1 or more, got 0"):
        n_step_returns(NO.float(), NO.float(), NO, NO, 0.9, 0)


@pytest.mark.parametrize("varies", [True, False])
def test_explained_variance_by_the_kernel_is_the_plain_one(varies):
    generator = torch.Generator().manual_seed(4)
    prediction, noise = torch.randn(9, 70, generator=generator), torch.randn(9, 70, generator=generator)
    valid = torch.rand(9, 70, generator=generator) > 0.2
    target = 3 + prediction + 0.5 * noise if varies else torch.full((9, 70), 0.1)
    plain = explained_variance.plain(prediction, target, valid)
    kernel = rng_returns_cpu.explained_variance(prediction, target, valid)
    assert fused.kernel_of(explained_variance, prediction, target, valid) is rng_returns_cpu.explained_variance
    assert kernel == 0 if not varies else 0.05 < kernel < 0.9
    torch.testing.assert_close(kernel, plain, rtol=1e-5, atol=1e-6)
    nothing = torch.zeros_like(valid)
    assert rng_returns_cpu.explained_variance(prediction, target, nothing) == 0
