"""Action masks: forbidden choices have no probability, no gradient and no value, in torch and in the CPU's kernels."""

import copy
import dataclasses
import math
from typing import NamedTuple

import gymnasium
import numpy as np
import pytest
import torch
from helpers.plainly import plainly

import headrace as hr
from headrace.algorithms import a2c
from headrace.algorithms.dqn import td_targets
from headrace.algorithms.on_policy import Targets
from headrace.algorithms.ppo import PPO, PPOConfig
from headrace.core import fused
from headrace.data.flat_dict import FlatDict
from headrace.data.replay import Batch
from headrace.data.rollout import Column, Rollout
from headrace.data.spaces import (
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    action_column,
    env_columns,
    from_json,
    to_json,
)
from headrace.envs.builtin.connect_four import ConnectFour
from headrace.envs.gym.info_mask import InfoMask
from headrace.kernels.language.ops import i32
from headrace.kernels.targets.deviations import deviation
from headrace.parallel.collector import InlineCollector
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.actor_q import ActorQ
from headrace.policies.distributions import Categorical
from headrace.policies.masks import FORBIDDEN, forbid, random_choice
from headrace.policies.q_network import QNetwork
from headrace.policies.recurrent import RecurrentActorCritic


def flat(choices, features=5):
    return FlatDict({"observation": Box(-3, 3, (features,)), "action_mask": MultiBinary(choices)})


def random_masks(shape, generator):
    mask = (torch.rand(shape, generator=generator) < 0.5).float()
    mask[..., -1] = torch.where(mask.any(-1), mask[..., -1], 1.0)
    return mask


def test_a_hand_worked_example():
    """Logits 0, 5, ln 3 with the second forbidden: probabilities 1/4, 0, 3/4."""
    logits = torch.tensor([[0.0], [5.0], [math.log(3)]], requires_grad=True)
    found = Categorical(forbid(logits, torch.tensor([[True], [False], [True]])))
    assert found.log_probs.exp()[:, 0].tolist() == pytest.approx([0.25, 0.0, 0.75])
    assert found.log_prob(torch.tensor([2])).item() == pytest.approx(math.log(0.75))
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert found.entropy().item() == pytest.approx(entropy)
    assert found.mode().item() == 2
    drawn = [found.sample(torch.tensor([[u]])).item() for u in (0.0, 0.2499, 0.2501, 1 - 2**-24)]
    assert drawn == [0, 0, 2, 2]
    (found.entropy() + found.log_prob(torch.tensor([2]))).sum().backward()
    # d log p_2 / dz = [2 = k] - p_k, dH / dz_k = -p_k (log p_k + H)
    expected = [-0.25 - 0.25 * (math.log(0.25) + entropy), 0.0, 0.25 - 0.75 * (math.log(0.75) + entropy)]
    assert logits.grad[:, 0].tolist() == pytest.approx(expected, abs=1e-6)


CASES = {
    "discrete": (flat(4), Discrete(4, start=2), {}),
    "shared, normalised": (flat(3), Discrete(3), {"shared": True, "normalize_observation": True}),
    "multi-discrete": (flat(5), MultiDiscrete([2, 3]), {"hidden": ()}),
    "several members": (
        Dict({"a": Discrete(3), "b": Box(-1, 1, (2, 2)), "action_mask": MultiBinary(4)}),
        Discrete(4),
        {},
    ),
}


def collected(observation_space, action_space, options, envs=70, closed=0):
    """PPO, and a rollout of random observations and masks that it acted on. closed: the last component has no allowed
    choice in every environment whose number is a multiple of this; 0: in none."""
    config = PPOConfig(num_steps=8, epochs=2, minibatch_size=90, hidden=(12,), entropy_coef=0.05)
    learner = PPO.build(dataclasses.replace(config, **options), observation_space, action_space, 0, "cpu")
    rollout = Rollout(
        8, envs, env_columns(observation_space) | {"action": action_column(action_space)} | learner.columns()
    )
    generator = torch.Generator().manual_seed(1)
    sizes = action_space.nvec.tolist() if isinstance(action_space, MultiDiscrete) else [int(action_space.n)]
    mask = torch.cat([random_masks((9, envs, size), generator) for size in sizes], -1)
    if closed:
        mask[:, ::closed, -sizes[-1] :] = 0
    if isinstance(observation_space, FlatDict):
        rollout.observation.copy_(torch.randn(rollout.observation.shape, generator=generator))
        rollout.observation[..., observation_space.features :] = mask
    else:
        rollout.observation.b.copy_(torch.randn(rollout.observation.b.shape, generator=generator))
        rollout.observation.action_mask.copy_(mask)
    rollout.reward.normal_(generator=generator)
    rollout.valid.copy_(torch.rand(rollout.valid.shape, generator=generator) > 0.1)
    with torch.no_grad():
        learner.policy.actor_out.weight.mul_(80)
    return learner, rollout, mask, sizes


@pytest.mark.parametrize("name", CASES)
def test_kernels_act_and_learn_as_torch(name, capsys):
    learner, rollout, mask, sizes = collected(*CASES[name])
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for t in range(8):
            random = torch.rand(70, learner.policy.num_draws, generator=generator)
            output = learner.policy.act(rollout.observation[t], None, random)
            with fused.plain_only():
                expected = learner.policy.act(rollout.observation[t], None, random)
            assert torch.equal(output.action, expected.action)
            torch.testing.assert_close(output.log_prob, expected.log_prob, atol=1e-5, rtol=1e-5)
            rollout.action[t], rollout.log_prob[t], rollout.value[t] = output[:3]
    start = torch.as_tensor(getattr(learner.policy.action_space, "start", 0))
    actions = (rollout.action - start).reshape(8, 70, -1)
    for part, allowed in enumerate(mask[:8].split(sizes, -1)):
        assert allowed.gather(2, actions[:, :, part : part + 1].long()).all()
    plain = PPO(copy.deepcopy(learner.policy), learner.config, learner.seed)
    plain.load_state_dict(learner.state_dict())
    metrics = learner.update(rollout, 0.0)
    with fused.plain_only():
        expected = plain.update(rollout, 0.0)
    for key, value in metrics.items():
        assert value.sub(expected[key]).abs() <= 2e-6 + 1e-4 * expected[key].abs(), key
    assert (learner.optimizer.flat - plain.optimizer.flat).abs().max() < 1e-5
    assert "runs in plain PyTorch" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["discrete", "multi-discrete"])
@pytest.mark.parametrize("closed", [1, 3])
def test_kernels_learn_as_torch_where_a_mask_allows_nothing(name, closed):
    """A forbidden logit has a gradient of 0, though one of the forbidden choices was taken."""
    learner, rollout, mask, sizes = collected(*CASES[name], closed=closed)
    assert not mask[:, ::closed, -sizes[-1] :].any()
    generator, policy = torch.Generator().manual_seed(2), learner.policy
    with torch.no_grad():
        for t in range(8):
            random = torch.rand(70, policy.num_draws, generator=generator)
            decision = policy.act(rollout.observation[t], None, random)
            rollout.action[t], rollout.log_prob[t], rollout.value[t] = decision[:3]
    targets = Targets(*torch.randn(2, 8, 70, generator=generator), rollout.valid[:-1])
    gradients = []
    for function in (a2c.gradient, plainly(a2c.gradient)):
        learner.optimizer.gradient.zero_()
        function(policy, rollout, targets, a2c.A2CConfig(entropy_coef=0.05))
        gradients.append(learner.optimizer.gradient.clone())
        if closed == 1:  # then the last component's logits are forbidden in all samples
            assert (policy.actor_out.bias.grad[-sizes[-1] :] == 0).all()
    assert (gradients[0] - gradients[1]).abs().max() < 1e-6 and gradients[1].abs().max() > 0.1


@pytest.mark.parametrize("policy", [ActorCritic, RecurrentActorCritic, QNetwork])
def test_no_forbidden_action_is_taken(policy):
    made = policy(flat(6), Discrete(6), hidden=(8,))
    if policy is QNetwork:
        made.exploration.fill_(0.5)
    generator = torch.Generator().manual_seed(0)
    observation, mask = torch.randn(4096, 11, generator=generator), random_masks((4096, 6), generator)
    observation[:, 5:] = mask
    random = torch.rand(4096, made.num_draws, generator=generator)
    for draws in (random, None):
        action = made.act(observation, None, draws).action.long()
        assert mask.gather(1, action.unsqueeze(1)).all()
    parts = {"observation": observation[:, :5].numpy(), "action_mask": mask.numpy()}
    chosen, _ = made.predict(parts)  # a dict, or the vector of it
    assert np.array_equal(chosen, made.predict(observation.numpy())[0]) and mask[range(4096), chosen].all()


def test_random_choices_are_uniform_over_the_allowed():
    mask = torch.tensor([[True], [False], [True], [True]]).expand(4, 3000)
    found = random_choice(mask, torch.arange(3000) / 3000)
    assert torch.bincount(found, minlength=4).tolist() == [1000, 0, 1000, 1000]


@pytest.mark.parametrize("double", [False, True])
def test_td_targets_take_the_best_allowed_action(double):
    policy, target = QNetwork(flat(3, 1), Discrete(3), hidden=()), QNetwork(flat(3, 1), Discrete(3), hidden=(), seed=1)
    for network, bias in ((policy, [0.0, 9.0, 5.0]), (target, [4.0, 8.0, 3.0])):
        network.out.weight.data.zero_()
        network.out.bias.data.copy_(torch.tensor(bias))
    after = torch.tensor([[0.0, 1, 0, 1], [0.0, 1, 1, 1], [0.0, 0, 0, 0]])  # the last is final
    rows, discount = torch.zeros(3, dtype=torch.int64), torch.tensor([0.5, 0.5, 0.0])
    batch = Batch(after, rows, torch.ones(3), discount, after, torch.ones(3), rows)
    found = td_targets(policy, target, batch._asdict(), double)
    assert found.tolist() == ([2.5, 5.0, 1.0] if double else [3.0, 5.0, 1.0])


def test_masks_are_refused_for_other_actions_and_of_another_size():
    for make in (ActorCritic, ActorQ):
        with pytest.raises(TypeError, match="action mask is for Discrete and MultiDiscrete actions"):
            make(flat(2), Box(-1, 1, (2,)))
    with pytest.raises(TypeError, match=r"has shape \(3,\), and Discrete\(4\) has 4 choices"):
        ActorCritic(flat(3), Discrete(4))
    with pytest.raises(ValueError, match="recurrent='gru': leave it out"):
        QNetwork(flat(3), Discrete(3), recurrent="gru")


def test_a_flat_dict_in_json_and_by_parts():
    space = FlatDict({"action_mask": MultiBinary(2), "observation": Box(-1, 1, (2, 2)), "extra": Box(0, 5, (1,))})
    assert from_json(to_json(space)) == space and space != flat(2)
    parts = {"observation": [[1, 2], [3, 4]], "extra": [5], "action_mask": [0, 1]}
    assert space.join(parts).tolist() == [1, 2, 3, 4, 5, 0, 1] and space.features == 5
    with pytest.raises(ValueError, match="extra has shape"):
        space.join(parts | {"extra": [1, 2]})


class Row(gymnasium.Env):
    """Walk along a row of five; the mask forbids to leave it. `closed`: the middle allows nothing."""

    observation_space, action_space = Box(0, 4, (1,)), Discrete(2)

    def __init__(self, member=False, closed=False):
        self.member, self.closed = member, closed
        if member:
            self.observation_space = Dict({"observation": Box(0, 4, (1,)), "action_mask": MultiBinary(2)})

    def seen(self):
        mask = np.array([self.place > 0, self.place < 4], np.int8)
        if self.closed and self.place == 2:
            mask[:] = 0
        place = np.array([self.place], np.float32)
        return ({"observation": place, "action_mask": mask}, {}) if self.member else (place, {"action_mask": mask})

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = 0, 0
        return self.seen()

    def step(self, action):
        assert self.seen()[0 if self.member else 1]["action_mask"][action], "a forbidden action"
        self.place += 2 * action - 1
        self.steps += 1
        observation, info = self.seen()
        return observation, float(self.place == 4), self.place == 4, self.steps >= 12, info


OPTIONS = {"total_steps": 400, "num_envs": 4, "progress": "none", "hidden": (8,), "scale": False}


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "reinforce", "trpo", "dqn", "pqn", "impala"])
@pytest.mark.parametrize("member", [False, True])
def test_algorithms_train_and_evaluate_within_the_mask(algorithm, member, tmp_path):
    options = OPTIONS | {"num_steps": 8, "info_mask": not member, "log_folder": str(tmp_path)}
    if algorithm == "dqn":
        options |= {"learning_starts": 40, "buffer_size": 1000, "batch_size": 8}
    run = hr.train(algorithm, lambda: Row(member), **options)
    assert run.policy.masked
    evaluation = hr.evaluate(run.policy, lambda: Row(member), 4, info_mask=not member)
    assert len(evaluation.returns) == 4


def test_any_number_but_0_in_infos_allows_an_action():
    env = InfoMask(Row(False))
    env.reset()
    env.env.seen = lambda: (np.zeros(1, np.float32), {"action_mask": np.array([0.5, 0.0])})
    assert env.reset()[0]["action_mask"].tolist() == [1, 0]


class Numbered(Row):
    """Places by their numbers, which with a mask are no vector; the mask in a form of the user's."""

    observation_space = Discrete(5)

    def __init__(self, form):
        super().__init__()
        self.form = form

    def seen(self):
        return self.place, {"action_mask": self.form(super().seen()[1]["action_mask"])}


FORMS = (
    *(lambda mask, kind=kind: mask.astype(kind) for kind in (np.int8, bool, np.int64, np.float64, np.uint16)),
    *(list, np.ndarray.tolist, torch.as_tensor),
)


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_masks_of_any_dtype_and_form_learn_the_same_without_a_line_about_dtypes(algorithm, capsys):
    options = OPTIONS | {"num_steps": 8, "info_mask": True, "seed": 3, "total_steps": 200}
    if algorithm == "dqn":
        options |= {"learning_starts": 40, "buffer_size": 1000, "batch_size": 8}
    learned = []
    for form in FORMS:
        trainer = hr.Trainer(algorithm, lambda form=form: Numbered(form), **options)
        for _ in range(6):
            trainer.iterate()
        learned.append(torch.cat([x.detach().flatten() for x in trainer.policy.parameters()]))
        trainer.close()
    assert len(learned) == 8 and all(torch.equal(x, learned[0]) for x in learned)
    assert "dtype" not in capsys.readouterr().err


def test_a_state_without_an_allowed_action_is_an_error_that_names_the_environment():
    with pytest.raises(ValueError, match="allows no action in a state that is not final") as caught:
        hr.train("ppo", lambda: Row(closed=True), info_mask=True, **OPTIONS)
    assert "in env" in caught.value.__notes__[0] and "test_masks" in caught.value.__notes__[0]

    class Closed(Spread):
        """Environment that allows no action of one component at some places."""

        def action_mask(s, p):
            return True, True, s.place < 2, s.place < 2, s.place < 2

    env = hr.make(Closed, 4, backend="torch")
    collector = InlineCollector(env, ActorCritic(env.observation_space, env.action_space, ()), 4, {}, 0)
    with pytest.raises(ValueError, match=r"the action mask of .*Closed allows no action in environment \d"):
        collector.collect()


def test_connect_four_compiled_equals_plain_python():
    env = hr.make(ConnectFour, 1)
    space = env.observation_space
    rollout = env.rollout(60, env.columns())
    env.reset(rollout, 3)
    plain = hr.single(ConnectFour)
    observation, info = plain.reset(seed=3)
    for t in range(60):
        assert np.array_equal(rollout.observation[t, 0].numpy(), observation)
        assert np.array_equal(info["action_mask"], observation[space.features :])
        action = (
            int(np.flatnonzero(info["action_mask"])[t % int(info["action_mask"].sum())]) if rollout.valid[t, 0] else 0
        )
        rollout.action[t] = action
        env.step(rollout, t)
        if not rollout.valid[t, 0]:
            observation, info = plain.reset()
        else:
            observation, reward, terminated, _, info = plain.step(action)
            assert (reward, terminated) == (rollout.reward[t, 0].item(), rollout.terminated[t, 0].item())
    assert (~rollout.valid).sum() > 2


class Spread(hr.KernelEnv):
    """A mask as a tuple, and a MultiDiscrete action, without branches: for all targets."""

    observation_space, action_space, max_steps = Box(0, 9, (1,)), MultiDiscrete([2, 3]), 9

    class State(NamedTuple):
        place: i32

    def reset(s, p, key):
        return Spread.State(0)

    def step(s, p, action, key):
        return Spread.State(s.place + action[0] + action[1]), 1.0, s.place > 6

    def observe(s, p):
        return (1.0 * s.place,)

    def action_mask(s, p):
        return True, s.place < 3, s.place > 1, True, s.place % 2 == 0


@pytest.mark.slow
def test_masks_of_tuples_on_two_targets():
    cpu, batched = (hr.make(Spread, 5, backend=backend) for backend in ("cpu", "torch"))
    assert deviation(cpu.target, batched.target, 12, 0).passed


def test_masks_of_tuples():
    env = hr.make(Spread, 5, backend="torch")
    rollout = env.rollout(4, env.columns())
    env.reset(rollout, 0)
    assert rollout.observation[0, 0].tolist() == [0, 1, 1, 0, 1, 1]


def test_collecting_compiled_takes_allowed_actions_only():
    env = hr.make(ConnectFour, 32)
    columns = {"log_prob": Column(), "value": Column(bootstrap=True)}
    policy = ActorCritic(env.observation_space, env.action_space, (16,))
    rollout = InlineCollector(env, policy, 40, columns, seed=5).collect()
    mask = rollout.observation[:-1, :, env.observation_space.features :]
    assert mask.gather(2, rollout.action.long().unsqueeze(2)).all() and not mask.all()
    assert rollout.episode_length.max() <= 21 and (rollout.log_prob > FORBIDDEN / 2).all()
