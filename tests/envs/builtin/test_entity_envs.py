"""Flock, Tag and IonTrap: single steps against NumPy, their rules, their images, and learning."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import entity_references as references
from helpers.kernel_envs import rollout

from headrace import envs
from headrace.envs.builtin.entities.flock import LEARNED, Flock, flock_state
from headrace.envs.builtin.entities.ion_trap import ION, IonTrap
from headrace.envs.builtin.entities.tag import PLAYERS, RED, RUNNERS, TAGGERS, Tag
from headrace.envs.compiled.env import CompiledEnv
from headrace.envs.compiled.single_env import single
from headrace.envs.sources import find
from headrace.evaluation.evaluator import evaluate
from headrace.training.trainer import Trainer

COPIES = 8
BRAKE, STRAIGHT = 0, 1


class SmallFlock(Flock):
    """Flock of another size, changed as its docstring says."""

    num_entities, num_agents = 12, 3
    State = flock_state(12)


@pytest.fixture(scope="module")
def tag() -> CompiledEnv:
    return envs.make("Tag", COPIES, threads=1)


@pytest.fixture(scope="module")
def trap() -> CompiledEnv:
    return envs.make("IonTrap", COPIES, threads=1)


def state_of(env: CompiledEnv) -> references.State:
    return {name: field.numpy().copy() for name, field in env.target.state().items()}


def by_agent(column: torch.Tensor, num_agents: int) -> np.ndarray:
    """[agents * W, ...] as [W, agents, ...]."""
    return column.unflatten(0, (num_agents, -1)).transpose(0, 1).numpy()


def compared(env: CompiledEnv, steps: int, reference) -> float:
    """Each step against that of the reference from the same state. reference: (state, action, state after) -> Outcome.
    Returns the share of entities that were left out, because their result hangs on rounding."""
    columns, agents, unsure = rollout(env.ir, steps, env.num_envs), env.num_agents, []
    env.reset(columns, 0)
    for t in range(steps):
        before, sure = state_of(env), columns.valid[t].numpy()[: env.num_copies]
        env.step(columns, t)
        after, action = state_of(env), by_agent(columns.action[t], agents)
        wanted = reference(before, action, after)
        keep = sure[:, None] & ~wanted.unsure
        unsure.append(1.0 - keep.mean())
        for name, field in wanted.state.items():
            kept = sure if field.ndim == 1 else keep
            off = np.abs(after[name].astype(np.float64) - field)[kept]
            if name in ("x", "y") and "along_x" in wanted.state:
                off = np.minimum(off, 1.0 - off)  # on the torus
            assert off.max(initial=0.0) < 2e-4, (t, name)
        shown = keep[:, :agents]
        for found, expected in (
            (columns.observation[t + 1], wanted.observation),
            (columns.reward[t], wanted.reward),
        ):
            np.testing.assert_allclose(by_agent(found, agents)[shown], expected[shown], atol=2e-4)
        ended = columns.terminated[t].numpy()[: env.num_copies]
        np.testing.assert_array_equal(ended[sure], wanted.terminated[sure])
    return float(np.mean(unsure))


def test_flock_agrees_with_numpy():
    env = CompiledEnv(SmallFlock, COPIES, threads=1, params={"noise": 0.0, "reach": 0.3, "near": 0.1})
    p = Flock.Params(noise=0.0, reach=0.3, near=0.1)
    left_out = compared(env, 30, lambda s, action, _: references.flock_step(s, action[:, :, 0], p))
    assert left_out < 0.05


def test_tag_agrees_with_numpy(tag):
    tagged = []

    def reference(state, action, after):
        tagged.append(state["tagged"].sum())
        return references.tag_step(state, action, after, Tag.Params(), TAGGERS)

    assert compared(tag, 30, reference) < 0.2
    assert sum(tagged) > 20


def test_the_trap_agrees_with_numpy(trap):
    ended = []

    def reference(state, action, _):
        outcome = references.trap_step(state, action[:, 0, 0], IonTrap.Params())
        ended.append(outcome.terminated.any())
        return outcome

    assert compared(trap, 60, reference) < 0.2  # the rows of resets
    assert any(ended)


def test_a_tag_is_paid_to_the_nearest_tagger_and_moves_the_runner(tag):
    columns = rollout(tag.ir, 2, tag.num_envs)
    tag.reset(columns, 0)
    x = torch.linspace(1.0, 39.0, PLAYERS).repeat(COPIES, 1)
    y = torch.where(torch.arange(PLAYERS) < TAGGERS, 5.0, 35.0).repeat(COPIES, 1)
    x[:, 3], x[:, 4], x[:, 50] = 10.0, 10.5, 10.2  # two taggers within reach of a runner
    y[:, 50] = 5.0
    tag.target.set_state(
        tag.target.state() | {"x": x, "y": y, "tagged": torch.zeros(COPIES, PLAYERS, dtype=torch.bool)}
    )
    columns.action[:, :, 0], columns.action[:, :, 1] = BRAKE, STRAIGHT
    for t in range(2):
        tag.step(columns, t)
    reward = by_agent(columns.reward[0], PLAYERS)
    assert (reward[:, 3] == 1).all() and (reward[:, 50] == -1).all()
    assert (np.abs(reward).sum(1) == 2).all() and not columns.terminated.any()
    after = state_of(tag)
    assert len(np.unique(after["x"][:, 50])) == COPIES  # at random places
    kept = np.arange(PLAYERS) != 50
    np.testing.assert_array_equal(after["x"][:, kept], x.numpy()[:, kept])


def lasted(trap: CompiledEnv, voltage: np.ndarray) -> float:
    """Mean number of steps until an ion is lost. voltage: of each step."""
    columns = rollout(trap.ir, len(voltage), trap.num_envs)
    trap.reset(columns, 0)
    columns.action[:] = torch.tensor(voltage, dtype=torch.float32).view(-1, 1, 1)
    for t in range(len(voltage)):
        trap.step(columns, t)
    ends = columns.terminated.numpy()
    return float(np.where(ends.any(0), ends.argmax(0) + 1, len(voltage)).mean())


def test_only_a_voltage_that_alternates_holds_ions(trap):
    constant = lasted(trap, np.ones(100))
    alternating = lasted(trap, np.where(np.arange(100) // 3 % 2, 1.0, -1.0))
    assert constant < 40 and lasted(trap, np.zeros(100)) < 100 and alternating > 1.5 * constant


def test_sizes_and_plain_python():
    """A subclass of another size, in plain Python and compiled: the same bits."""
    env, plain = CompiledEnv(SmallFlock, 1, threads=1), single(SmallFlock, render_mode="rgb_array")
    columns = rollout(env.ir, 3, 3)
    env.reset(columns, 5)
    seen, _ = plain.reset(seed=5)
    for t in range(3):
        np.testing.assert_array_equal(columns.observation[t].numpy(), np.stack(list(seen.values())))
        env.step(columns, t)
        seen, *_ = plain.step({name: columns.action[t, k].numpy() for k, name in enumerate(plain.agents)})
    for name, field in state_of(env).items():
        np.testing.assert_array_equal(field[0], getattr(plain.state, name))


@pytest.mark.parametrize(("cls", "colors", "scale"), [(SmallFlock, 3, 1.0), (Tag, 3, 40.0), (IonTrap, 4, None)])
def test_images(cls, colors, scale):
    env = single(cls, render_mode="rgb_array")
    env.reset(seed=0)
    image = env.render()
    assert image.dtype == np.uint8 and image.ndim == 3 and image.shape[0] == image.shape[1]
    assert len({tuple(color) for color in image.reshape(-1, 3)}) == colors  # of things, and of the background
    x, y = float(env.state.x[0]), float(env.state.y[0])
    x, y = (0.5 + 0.48 * x, 0.5 + 0.48 * y) if scale is None else (x / scale, y / scale)
    size = len(image)
    drawn = {SmallFlock: LEARNED, Tag: RED, IonTrap: ION}[cls]  # the first: it learns, it is a tagger
    assert tuple(image[int((1.0 - y) * size), int(x * size)]) == drawn


def test_two_groups_learn_tag():
    with closing(Trainer("ppo", "Tag", seed=0, num_envs=2, num_steps=4, minibatch_size=160, epochs=1)) as trainer:
        before = [weight.clone() for weight in trainer.policy.parameters()]
        metrics = trainer.iterate().metrics
        assert trainer.steps == 2 * 4 * (TAGGERS + RUNNERS)
        assert {name.split("/")[0] for name in metrics if "/" in name} >= {"taggers", "runners"}
        for weight, old in zip(trainer.policy.parameters(), before, strict=True):
            assert not torch.equal(weight, old)


def test_the_example_of_the_documents(tmp_path):
    """A dog that stays far away: the sheep only draw together."""
    text = (Path(__file__).parents[3] / "docs" / "entities.md").read_text()
    (tmp_path / "herd.py").write_text(text.split("```python\n")[1].split("```")[0])
    herd = single(find(f"{tmp_path / 'herd.py'}:Herd"))
    herd.reset(seed=0)
    for _ in range(3):
        observation, reward, *_ = herd.step(np.array([1.0, 0.0], np.float32))
    assert observation[0] == pytest.approx(1.8) and -1.0 < reward < -0.4  # of two thirds, evenly spread


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("Flock", 150.0), ("IonTrap", 400.0)])
def test_registered_settings_train(name, least):
    """The mean return after training is far above that of a policy that acts at random."""
    with closing(Trainer("ppo", name, seed=1000)) as trainer:
        while trainer.steps < trainer.plan.config.total_steps:
            trainer.iterate()
        found = evaluate(trainer.policy, name, episodes=10, seed=0, deterministic=False)
        assert found.mean > least
