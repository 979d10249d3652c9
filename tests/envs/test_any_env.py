"""Properties of N environments, however they are stepped: inline, in workers, compiled, by a library, on a device."""

from __future__ import annotations

import gymnasium
import pytest
import torch
from gymnasium.vector import AutoresetMode

from headrace.data.rollout import Rollout
from headrace.envs import adapted, make
from headrace.envs.wrappers.device_env import DeviceEnv

N = 3
ROWS = 24
CARTPOLE, PENDULUM = "CartPole-v1", "Pendulum-v1"
NEAR = 0.05  # of every number where an episode of CartPole begins
ANGLE, PLACE = 0.2095, 2.4  # beyond which it ends
UNCOMPILED = ("inline", "workers", "device")  # whose actions meet Gymnasium's own assertions, as do those of vectors


def vector(name, mode):
    return adapted(gymnasium.make_vec(name, N, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}))


MAKERS = {
    "inline": lambda name: make(name, N, backend="inline"),
    "workers": lambda name: make(name, N, workers=2),
    "cpu": lambda name: make(name, N, backend="cpu"),
    "torch": lambda name: make(name, N, backend="torch"),
    "device": lambda name: DeviceEnv(make(name, N, backend="inline"), "cpu"),
} | {f"vector, {mode.value}": lambda name, mode=mode: vector(name, mode) for mode in AutoresetMode}


@pytest.fixture(scope="module", params=MAKERS)
def cartpole(request):
    env = MAKERS[request.param](CARTPOLE)
    env.kind = request.param
    yield env
    env.close()


@pytest.fixture(scope="module", params=MAKERS)
def pendulum(request):
    env = MAKERS[request.param](PENDULUM)
    yield env
    env.close()


def fresh(env, rows=ROWS, seed=1):
    """A rollout at whose row 0 an episode begins in every environment."""
    rollout = env.rollout(rows, env.columns())
    env.reset(rollout, seed)
    return rollout


def stepped(env, rollout, actions):
    rollout.action.copy_(actions)
    for t in range(rollout.num_steps):
        env.step(rollout, t)
    return rollout


def drawn(rows=ROWS, seed=0):
    return torch.randint(0, 2, (rows, N), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)


def copied(rollout):
    names = ("observation", "valid", "reward", "terminated", "truncated")
    return {name: getattr(rollout, name).clone() for name in names}


def equal(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def test_it_says_what_it_is(cartpole):
    original = gymnasium.make(CARTPOLE)
    assert cartpole.num_envs == N and cartpole.device == torch.device("cpu")
    assert cartpole.observation_space == original.observation_space
    assert cartpole.action_space == original.action_space
    assert cartpole.max_steps == 500


def test_reset_begins_an_episode_in_every_world(cartpole):
    rollout = fresh(cartpole)
    first = rollout.observation[0]
    assert first.shape == (N, 4) and first.dtype == torch.float32
    assert rollout.valid[0].all() and first.abs().max() <= NEAR and len(first.unique(dim=0)) == N


def test_a_step_writes_its_own_rows_and_no_other(cartpole):
    rollout = fresh(cartpole)
    for name in ("observation", "reward", "valid", "terminated"):
        getattr(rollout, name)[4:].fill_(True if name in ("valid", "terminated") else 7.0)
    rollout.action.copy_(drawn())
    for t in range(3):
        before = copied(rollout)
        cartpole.step(rollout, t)
        for name, column in copied(rollout).items():
            own = t + (name in ("observation", "valid"))
            others = [row for row in range(len(column)) if row not in (own, t)]
            assert torch.equal(column[others], before[name][others]), name
        assert (rollout.reward[t] == 1).all() and rollout.valid[t + 1].all()
        assert torch.equal(rollout.action[t], drawn()[t])


def test_the_seed_decides(cartpole):
    one = copied(stepped(cartpole, fresh(cartpole), drawn()))
    cartpole.step(fresh(cartpole, 1, seed=9), 0)  # whatever happens between
    assert equal(one, copied(stepped(cartpole, fresh(cartpole), drawn())))
    other = copied(stepped(cartpole, fresh(cartpole, seed=2), drawn()))
    assert not torch.equal(one["observation"][0], other["observation"][0])


def without_own_steps(env):
    """Skip the test where an episode's first step falls into the masked one: the library has reset the environment, and
    steps it with the others. test_adapter.py has what its columns are."""
    if env.kind in ("vector, SameStep", "vector, Disabled"):
        pytest.skip("its episodes begin in the masked step")


def test_an_ending_is_followed_by_a_dead_row_and_that_by_an_episode(cartpole):
    without_own_steps(cartpole)
    rollout = stepped(cartpole, fresh(cartpole, 40), torch.ones(40, N, dtype=torch.int32))
    terminated, valid, observation = rollout.terminated, rollout.valid, rollout.observation
    assert terminated.sum(0).min() >= 3 and not rollout.truncated.any()  # pushed to one side it falls in ten steps
    for t, n in terminated.nonzero().tolist():
        x, _, angle, _ = observation[t + 1, n].tolist()
        assert abs(angle) > ANGLE or abs(x) > PLACE  # the final observation, not that of the next episode
        assert valid[t, n] and not valid[t + 1, n] and rollout.reward[t, n] == 1
        if t + 2 <= rollout.num_steps:
            assert valid[t + 2, n] and observation[t + 2, n].abs().max() <= NEAR
            assert rollout.reward[t + 1, n] == 0 and not terminated[t + 1, n]
    dead = ~valid[:-1]
    assert torch.equal(dead[1:], terminated[:-1])  # no other row is dead
    lengths, returns = rollout.episode_length, rollout.episode_return
    for n in range(N):
        ends = terminated[:, n].nonzero()[:, 0].tolist()
        begins = [0, *(end + 2 for end in ends)]
        for begin, end in zip(begins, ends, strict=False):
            if end + 1 < rollout.num_steps:
                assert lengths[end + 1, n] == returns[end + 1, n] == end + 1 - begin


def test_what_is_decided_in_a_dead_row_changes_nothing(cartpole):
    without_own_steps(cartpole)
    rollout = fresh(cartpole, 30)
    usual = copied(stepped(cartpole, rollout, torch.ones(30, N, dtype=torch.int32)))
    actions = torch.where(usual["valid"][:-1], 1, 0).int()
    assert not actions.all() and equal(usual, copied(stepped(cartpole, fresh(cartpole, 30), actions)))


def test_the_next_rollout_continues_from_the_bootstrap_row(cartpole):
    whole = copied(stepped(cartpole, fresh(cartpole), drawn()))
    half = fresh(cartpole, ROWS // 2)
    parts = []
    for part in drawn().split(ROWS // 2):
        if parts:
            half.continue_from(half)
        parts.append(copied(stepped(cartpole, half, part)))
    assert torch.equal(torch.cat([part["reward"] for part in parts]), whole["reward"])
    seen = torch.cat([part["observation"][:-1] for part in parts])
    assert torch.equal(seen, whole["observation"][:-1])


def test_a_rollout_of_ones_own_does_as_well(cartpole):
    own = Rollout(ROWS, N, cartpole.columns())
    cartpole.reset(own, 1)
    assert equal(copied(stepped(cartpole, fresh(cartpole), drawn())), copied(_again(cartpole, own)))


def _again(env, rollout):
    env.reset(rollout, 1)
    return stepped(env, rollout, drawn())


def test_a_loaded_state_goes_on_or_begins_anew(cartpole):
    rollout = stepped(cartpole, fresh(cartpole, 4), drawn(4))
    state = cartpole.state_dict()
    cartpole.load_state_dict(state)
    rollout.continue_from(rollout)
    stepped(cartpole, rollout, drawn(4, seed=1))
    if state:  # compiled worlds go on
        assert rollout.valid.all() and (rollout.reward == 1).all()
    else:
        assert not rollout.valid[0].any() and rollout.valid[1:].all() and rollout.reward[1:].all()
        assert rollout.observation[1].abs().max() <= NEAR


def test_time_limits_truncate(pendulum):
    rollout = fresh(pendulum, 204)
    torque = torch.rand(204, N, 1, generator=torch.Generator().manual_seed(0)) * 8 - 4  # half of it is out of bounds
    stepped(pendulum, rollout, torque)
    assert torch.equal(rollout.action, torque)  # the column keeps what was decided
    assert rollout.truncated.nonzero()[:, 0].tolist() == [199] * N and not rollout.terminated.any()
    assert (~rollout.valid).nonzero()[:, 0].tolist() == [200] * N
    assert (rollout.episode_length[200] == 200).all()
    returns = rollout.reward[:200].double().sum(0)
    assert torch.allclose(rollout.episode_return[200].double(), returns, rtol=1e-5)
    assert pendulum.max_steps == 200


def test_actions_out_of_bounds_are_clipped(pendulum):
    def after(torque):
        rollout = fresh(pendulum, 1)
        stepped(pendulum, rollout, torch.full((1, N, 1), torque))
        return rollout.observation[1].clone(), rollout.reward[0].clone()

    assert all(map(torch.equal, after(9.0), after(2.0))) and not torch.equal(after(1.0)[0], after(2.0)[0])


@pytest.mark.parametrize("kind", [*UNCOMPILED, *(name for name in MAKERS if name.startswith("vector"))])
def test_an_action_that_there_is_not_is_refused(kind):
    env = MAKERS[kind](CARTPOLE)
    rollout = fresh(env, 2)
    rollout.action.fill_(7)
    with pytest.raises(AssertionError):
        env.step(rollout, 0)
    env.close()


@pytest.mark.parametrize("kind", MAKERS)
def test_closing_twice_does_no_harm(kind):
    env = MAKERS[kind](CARTPOLE)
    fresh(env)
    env.close()
    env.close()


def test_an_object_that_lacks_part_of_an_env_is_refused_by_name():
    class Half:
        name, backend, device, num_envs = "Half", "torch", "cpu", 1

        def state_dict(self):
            return {}

    with pytest.raises(TypeError, match=r"has no .*action_space.*columns.*derive its class from headrace.Env"):
        adapted(Half())
