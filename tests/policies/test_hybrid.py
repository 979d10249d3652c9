"""Actions of several kinds: their vectors, their distributions against torch's, and trainings on them."""

from contextlib import closing

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

import headrace as hr
from headrace.core import fused
from headrace.data.flat_action import FlatAction, FlatBox, component_sizes, flat_action
from headrace.data.spaces import action_column, from_json, to_json
from headrace.evaluation.recording import read_episodes, record
from headrace.parallel.collector import steps
from headrace.policies.heads import action_head
from tests.envs.hybrid import PARTS, Grid, Hit, Masked

SPACE = flat_action(Dict(PARTS))


@pytest.mark.parametrize("space", [Discrete(3), MultiDiscrete([2, 3]), MultiBinary(4), Box(-1, 1, (2,)), Text(3)])
def test_what_a_policy_has_already_stays_as_it_is(space):
    assert flat_action(space) is space


def test_an_action_becomes_a_vector_and_comes_back():
    whole = SPACE.whole
    whole.seed(0)
    actions = [whole.sample() for _ in range(20)]
    rows = np.stack([SPACE.join(action) for action in actions])
    assert rows.shape == (20, 7) and rows.dtype == np.float32
    for one, action in zip(SPACE.each(rows), actions, strict=True):
        assert whole.contains(one)
        np.testing.assert_equal(one, action)
    batch = SPACE.batch(rows)
    assert batch["where"].shape == (20, 1, 2) and batch["more"][1].dtype == np.int8
    assert batch["which"].tolist() == [action["which"] for action in actions]


def test_entries_beyond_the_bounds_of_a_box_are_clipped_and_whole_numbers_rounded():
    space = flat_action(Grid.action_space)
    assert isinstance(space, FlatBox) and space.shape == (6,)
    (one,) = space.each(np.float32([[9, -3, 0.4, 1.6, 2, -9]]))
    assert one.dtype == np.int32 and one.tolist() == [[4, 0, 0], [2, 2, -2]]


@pytest.mark.parametrize("space", [Dict(PARTS), Grid.action_space, Tuple((Box(-1, 1, (2,)), Box(0, np.inf, (1, 1))))])
def test_spaces_survive_json(space):
    flat = flat_action(space)
    assert from_json(to_json(flat)) == flat


def test_spaces_that_have_no_column():
    with pytest.raises(TypeError, match=r"action\['b'\]: Text.*text has no numbers"):
        action_column(Dict({"a": Discrete(2), "b": Text(3)}))
    with pytest.raises(TypeError, match="number 16777216, which float32 does not hold exactly"):
        action_column(Dict({"a": Discrete(2**24 + 1), "b": Box(-1, 1, (2,))}))


def parts_of(parameters, head, space):
    """The distributions of torch.distributions, in the order of the space's parts."""
    own, found = parameters.double().split(head.parameter_sizes), []
    for part, x in zip(space.parts, own, strict=True):
        match part.flat:
            case Discrete():
                found.append([torch.distributions.Categorical(logits=x.t())])
            case MultiDiscrete():
                sizes = part.flat.nvec.tolist()
                found.append([torch.distributions.Categorical(logits=y.t()) for y in x.split(sizes)])
            case MultiBinary():
                found.append([torch.distributions.Bernoulli(logits=y) for y in x])
            case Box():
                found.append([torch.distributions.Normal(y, 1.0) for y in x])
    return found


def test_log_prob_and_entropy_are_sums_over_the_parts():
    head, rows = action_head(SPACE), 50
    generator = torch.Generator().manual_seed(0)
    parameters = torch.randn(head.num_parameters, rows, generator=generator)
    found = head(parameters)
    action = found.sample(torch.rand(rows, head.num_draws, generator=generator)).detach()
    assert all(SPACE.whole.contains(one) for one in SPACE.each(action.numpy()))
    log_prob, entropy = torch.zeros(2, rows, dtype=torch.float64)
    for part, own in zip(SPACE.parts, parts_of(parameters, head, SPACE), strict=True):
        values = action[:, part.entries].double()
        start = int(part.space.start) if isinstance(part.space, Discrete) else 0
        for k, one in enumerate(own):
            log_prob += one.log_prob(values[:, k] - start)
            entropy += one.entropy()
    torch.testing.assert_close(found.log_prob(action).double(), log_prob, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.entropy().double(), entropy, rtol=1e-5, atol=1e-5)
    assert torch.equal(found.kl(head(parameters)), torch.zeros(rows))


def test_the_mode_is_that_of_each_part():
    head = action_head(SPACE)
    parameters = torch.zeros(head.num_parameters, 1)
    places = dict(zip([part.keys for part in SPACE.parts], np.cumsum([0, *head.parameter_sizes]), strict=False))
    parameters[places["which",] + 2] = 3.0
    parameters[places["more", 0] + 1] = parameters[places["more", 1] + 1] = 3.0
    parameters[places["where",]] = 0.25
    (action,) = SPACE.each(head(parameters).mode().detach().numpy())
    np.testing.assert_equal(
        action,
        {"which": 3, "where": np.float32([[0.25, 0]]), "more": (np.array([1, 0]), np.array([0, 1], np.int8))},
    )


def trained(env, num_envs=4, **settings):
    small = {"num_steps": 16, "minibatch_size": 32, "total_steps": 1000, "seed": 0}
    trainer = hr.Trainer("ppo", env, num_envs=num_envs, **small, **settings)
    trainer.iterate()
    return trainer


@pytest.mark.parametrize(("env", "num_envs"), [(Hit, 4), (Hit, 1), (Masked, 4), (Masked, 1)])
def test_the_program_equals_plain_pytorch(env, num_envs, capsys):
    weights = []
    for plain in (False, True):
        with fused.plain_only(plain):
            trainer = trained(env, num_envs)
            with torch.no_grad():
                kernel = fused.kernel_of(steps, trainer.collector, 0)
            assert (kernel is None) is plain
        weights.append(torch.cat([x.flatten() for x in trainer.algorithm.policy.parameters()]))
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-4)
    assert "in plain PyTorch" not in capsys.readouterr().err


def test_masks_are_about_the_choices_of_all_parts():
    assert component_sizes(flat_action(Masked.action_space)) == [2, 3, 3]
    trainer = trained(Masked)  # whose step() asserts that forbidden choices are not taken
    policy = trainer.algorithm.policy
    env = Masked()
    observation, _ = env.reset(seed=1)
    for deterministic in (True, False):
        env.step(policy.predict(observation, deterministic=deterministic)[0])


def test_a_mask_that_allows_no_choice_of_one_part_is_an_error():
    class NothingAllowed(Masked):
        def _observe(self):
            seen = super()._observe()
            seen["action_mask"][2:5] = 0  # the second choice of "more"
            return seen

    with pytest.raises(ValueError, match="allows no action"):
        trained(NothingAllowed)


@pytest.mark.parametrize("algorithm", ["a2c", "trpo", "appo", "impala", "reinforce"])
def test_on_policy_algorithms_act_in_them(algorithm):
    with closing(hr.Trainer(algorithm, Hit, num_envs=4, num_steps=16, total_steps=200, seed=0)) as trainer:
        trainer.iterate()


@pytest.mark.parametrize("algorithm", ["sac", "td3"])
def test_boxes_of_any_shape_suit_algorithms_for_boxes(algorithm):
    trainer = hr.Trainer(algorithm, Grid, num_envs=2, total_steps=200, learning_starts=20, seed=0)
    while trainer.steps < 60:
        trainer.iterate()
    action, _ = trainer.algorithm.policy.predict(np.zeros(2, np.float32))
    assert Grid.action_space.contains(action)


def test_algorithms_of_another_kind_of_actions_name_those_that_are_for_them():
    with pytest.raises(ValueError, match=r"sac supports Box actions, and those of .*Hit are Dict\(.*use ppo, a2c"):
        hr.Trainer("sac", Hit, total_steps=100)


@pytest.mark.parametrize(
    ("space", "hybrid"),
    [
        (Tuple((Discrete(3), Box(-1.0, 1.0, (2, 2)))), True),
        (Dict({"a": Dict({"b": Discrete(2), "c": Box(0.0, 1.0, ())}), "d": Box(-1, 1, (1,), np.int64)}), True),
        (Tuple((Discrete(3), Discrete(2))), False),
        (Tuple((Discrete(3), Box(-1.0, 1.0, (2,)), MultiDiscrete([2, 2]))), False),
        (MultiDiscrete(np.array([[2, 3], [2, 2]])), False),
        (Dict({"only": Discrete(3)}), False),
    ],
)
def test_hybrid_sac_is_named_for_those_actions_alone_that_it_takes(space, hybrid):
    class Any(Grid):
        action_space = space

    with pytest.raises(ValueError, match="sac supports Box actions") as error:
        hr.Trainer("sac", Any, num_envs=2, total_steps=100)
    assert ("hybrid_sac" in str(error.value).rpartition(": use ")[2]) == hybrid
    if hybrid:
        hr.Trainer("hybrid_sac", Any, num_envs=2, total_steps=100).close()
    else:
        with pytest.raises(TypeError, match="actions must be a Dict or Tuple of one Discrete space and Boxes, got"):
            hr.Trainer("hybrid_sac", Any, num_envs=2, total_steps=100)


def test_a_run_is_saved_resumed_evaluated_and_recorded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = {"num_envs": 4, "num_steps": 32, "seed": 0, "progress": "none"}
    whole = hr.train("ppo", Hit, total_steps=1024, **settings)
    half = hr.train("ppo", Hit, total_steps=512, **settings)
    resumed = hr.train(resume=half.path, env=Hit, total_steps=1024, progress="none")
    pairs = zip(*(hr.load(run.path / "last").parameters() for run in (whole, resumed)), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    policy = hr.load(whole.path)
    assert isinstance(policy.action_space, FlatAction)
    (episode,) = read_episodes(record(policy, Hit, episodes=1).path)
    assert [*episode.actions] == ["more", "where", "which"] and episode.actions["where"].shape == (20, 1, 2)
    with pytest.raises(TypeError, match="its actions are of several kinds, Dict"):
        hr.export(policy, "onnx", tmp_path / "policy.onnx")
    with pytest.raises(ValueError, match="Hit cannot be drawn: it takes no render_mode"):
        hr.play(policy, Hit, tmp_path / "play.gif")


@pytest.mark.parametrize("settings", [{"backend": "workers"}, {"actors": 2}, {"recurrent": "gru"}])
def test_workers_actors_and_recurrent_policies(settings):
    with closing(hr.Trainer("ppo", Hit, num_envs=4, num_steps=16, total_steps=200, seed=0, **settings)) as trainer:
        trainer.iterate()
