"""DQN: its learning call against an independent one in float64, what it keeps, and that it learns."""

from __future__ import annotations

import json

import pytest
import torch
from helpers.corridor import Corridor
from helpers.off_policy_oracle import take
from helpers.same import same
from helpers.tiny import Walk

import headrace as hr
from headrace.algorithms.dqn import DQN, DQNConfig
from headrace.data.priorities import SMALLEST
from headrace.data.replay import Batch, Replay
from headrace.data.spaces import Box, Discrete
from headrace.runs import checkpoint
from headrace.runs.logs import tensorboard_tags

STEPS, SIZE, ACTIONS, START = 5, 24, 4, 3
TINY = {
    "num_steps": 4,
    "buffer_size": 400,
    "learning_starts": 64,
    "batch_size": 16,
    "gradient_steps": 3,
    "target_interval": 5,
    "hidden": (8,),
    "total_steps": 1200,
    "progress": "none",
}


def made_up() -> Batch:
    """Random transitions, some of them ended, some dead."""
    generator = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(STEPS, SIZE, *shape, generator=generator)

    action = torch.randint(START, START + ACTIONS, (STEPS, SIZE), generator=generator).int()
    discount = normal().abs().clamp(max=0.99) * (normal() > -0.5)
    weight = normal().abs() * (normal() > -1)
    return Batch(normal(3), action, 3 * normal(), discount, normal(3), weight, torch.zeros(STEPS, SIZE).long())


def q_values(w: dict[str, torch.Tensor], x: torch.Tensor, dueling: bool) -> torch.Tensor:
    """[rows, actions], by the paper's formulas."""

    def dense(name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    x = dense("trunk.layers.0", x).clamp(min=0)
    if not dueling:
        return dense("out", dense("trunk.layers.1", x).clamp(min=0))
    advantage = dense("out", dense("branch.layers.0", x).clamp(min=0))
    value = dense("value_out", dense("value_branch.layers.0", x).clamp(min=0))
    return value + advantage - advantage.sum(1, keepdim=True) / ACTIONS


def reference(weights, batch, follow, config):
    """Gradient steps in float64, row by row. Gives weights, target's weights, errors and losses."""
    w = {name: x.double() for name, x in weights.items()}
    slow = {name: x.clone() for name, x in w.items()}
    moments = {name: (torch.zeros_like(x), torch.zeros_like(x)) for name, x in w.items()}
    errors, losses = [], []
    for g in range(STEPS):
        for x in w.values():
            x.requires_grad_()
        now, later = batch.observation[g].double(), batch.next_observation[g].double()
        q, next_q, next_slow = (q_values(*pair, config.dueling) for pair in ((w, now), (w, later), (slow, later)))
        total, live, error = 0.0, 0, []
        for b in range(SIZE):
            best = next_q[b].argmax() if config.double else next_slow[b].argmax()
            aim = batch.reward[g, b].double() + batch.discount[g, b].double() * next_slow[b, best].detach()
            error.append(aim - q[b, batch.action[g, b] - START])
            size = error[-1].abs()
            huber = 0.5 * size**2 if size < 1 else size - 0.5
            total = total + batch.weight[g, b].double() * huber
            live += int(batch.weight[g, b] > 0)
        loss = total / live
        gradients = torch.autograd.grad(loss, list(w.values()))
        norm = sum((x**2).sum() for x in gradients) ** 0.5
        with torch.no_grad():
            for (name, x), gradient in zip(w.items(), gradients, strict=True):
                gradient = gradient * min(1.0, config.max_grad_norm / norm)
                m, v = moments[name]
                m.mul_(0.9).add_(0.1 * gradient)
                v.mul_(0.999).add_(0.001 * gradient**2)
                step = m / (1 - 0.9 ** (g + 1)) / ((v / (1 - 0.999 ** (g + 1))).sqrt() + 1e-8)
                x -= config.learning_rate * step
                slow[name] += follow[g].double() * (x - slow[name])
        errors.append(torch.stack(error).detach())
        losses.append(loss.detach())
        w = {name: x.detach() for name, x in w.items()}
    return w, slow, torch.stack(errors), torch.stack(losses)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("max_grad_norm", [0.3, 100.0])
def test_gradient_steps_equal_an_independent_implementation(double, dueling, max_grad_norm):
    config = DQNConfig(
        double=double, dueling=dueling, hidden=(7, 6), learning_rate=1e-2, max_grad_norm=max_grad_norm,
        normalize_observation=False,
    )  # fmt: skip
    dqn = DQN.build(config, Box(-9, 9, (3,)), Discrete(ACTIONS, start=START), 3, "cpu")
    batch, follow = made_up(), torch.tensor([0.0, 0.3, 0.0, 1.0, 0.0])
    before = {name: x.detach().clone() for name, x in dqn.policy.named_parameters()}
    weights, slow, errors, losses = reference(before, batch, follow, config)
    metrics, error = take(dqn, batch, torch.zeros(*batch.reward.shape, 0), tau=follow)
    torch.testing.assert_close(error.double(), errors, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(metrics["loss"].double(), losses.mean(), rtol=1e-4, atol=1e-4)
    for mine, its in ((dqn.policy, weights), (dqn.networks.target, slow)):
        for name, x in mine.named_parameters():
            torch.testing.assert_close(x.detach().double(), its[name], rtol=1e-3, atol=1e-4, msg=name)


def collected(**settings):
    """DQN with a replay of what happened in Corridor, before its first gradient step."""
    trainer = hr.Trainer("dqn", Corridor(8), **(TINY | {"learning_starts": 10**6} | settings))
    for _ in range(20):
        trainer.iterate()
    return trainer


def test_priorities_are_the_errors_of_the_rows_that_were_learned_from():
    trainer = collected(prioritized=True, n_steps=3, priority_alpha=0.7, priority_beta=0.4)
    dqn, leaves = trainer.algorithm, trainer.algorithm.replay.leaves().clone()
    assert set(leaves.tolist()) == {0.0, 1.0}  # nothing learned yet: all that can be drawn comes first
    random, no_draws = torch.rand(2, 16, 4), torch.rand(2, 16, 0)
    batches = dqn.replay.gather(dqn.replay.draw(random), 0.99)
    weights, follow = {name: x.clone() for name, x in dqn.policy.state_dict().items()}, torch.zeros(2)
    _, error = take(dqn, batches, no_draws, tau=follow)
    dqn.policy.load_state_dict(weights)
    dqn.optimizer.mean.zero_(), dqn.optimizer.square.zero_(), dqn.optimizer.steps.zero_()
    dqn.learn(batches, no_draws)
    for row, size in zip(batches.rows.flatten().tolist(), error.abs().flatten().tolist(), strict=True):
        same = (batches.rows == row) & (error.abs() > size)
        if not same.any():  # the largest of a row that was drawn twice
            assert dqn.replay.leaves()[row].item() == pytest.approx((size + SMALLEST) ** 0.7, rel=1e-4)
    dqn.update(trainer.collector.collect(), 0.5)
    assert dqn.replay.beta.item() == pytest.approx(0.7)


@pytest.mark.parametrize("settings", [{}, {"prioritized": True, "n_steps": 3, "dueling": True}])
def test_it_walks_a_corridor(settings):
    config = TINY | {"total_steps": 8000, "learning_rate": 3e-3, "gradient_steps": 8, "hidden": (16,), "gamma": 0.9}
    trainer = hr.Trainer("dqn", Corridor(8), **(config | {"exploration_final": 0.02} | settings))
    while not trainer.reason_to_stop():
        trainer.iterate()
    assert trainer.episodes.mean_return() > 0.5  # 0.6 is all there is


def test_exploration_falls_and_may_differ_between_environments():
    dqn = collected(exploration_initial=0.8, exploration_final=0.2, exploration_fraction=0.5).algorithm
    for progress, share in ((0.0, 0.8), (0.25, 0.5), (0.5, 0.2), (1.0, 0.2)):
        dqn.progress = progress
        dqn.explore()
        assert dqn.policy.exploration.tolist() == pytest.approx([share])
    trainer = collected(exploration_initial=0.5, exploration_final=0.5, exploration_spread=7.0)
    assert trainer.policy.exploration.tolist() == pytest.approx([0.5 ** (1 + i) for i in range(8)])
    rollout = trainer.collector.collect()
    assert rollout.valid.any() and trainer.policy.predict([[0.0, 1.0]] * 3, deterministic=False)[0].shape == (3,)


def test_a_share_of_actions_is_random_and_the_rest_the_best():
    policy = DQN.build(DQNConfig(hidden=(4,)), Box(-9, 9, (3,)), Discrete(ACTIONS, start=START), 0, "cpu").policy
    observation, random = torch.randn(1, 3).expand(20_000, 3), torch.rand(20_000, 2)
    policy.exploration = torch.full((1,), 0.4)
    with torch.no_grad():
        greedy = policy.act(observation[:1], None, None)
        counts = torch.bincount(policy.act(observation, None, random).action, minlength=START + ACTIONS)
    best = int(greedy.action)
    assert greedy.value.item() == pytest.approx(policy(observation[:1]).max().item(), abs=1e-6)
    assert policy.predict(observation[0].numpy())[0] == best
    for action in range(START, START + ACTIONS):
        share = 0.1 + 0.6 * (action == best)
        assert abs(int(counts[action]) / 20_000 - share) < 0.02
    assert counts[:START].sum() == 0


def test_a_run_says_what_it_needs_and_writes_sb3s_names(tmp_path, capsys):
    run = hr.train("dqn", Walk(), log_folder=str(tmp_path), **(TINY | {"progress": "plain"}))
    assert "replay: 400 steps x 19 bytes = 0.0 MiB" in capsys.readouterr().out
    row = json.loads((run.path / "metrics.jsonl").read_text().splitlines()[-1])
    assert {"loss", "q_value", "n_updates", "exploration_rate"} <= row.keys()
    assert row["n_updates"] == 3 * (row["iteration"] - 1) and row["exploration_rate"] == pytest.approx(0.05)
    tags = tensorboard_tags(row)
    assert {"train/loss", "train/n_updates", "train/learning_rate", "rollout/exploration_rate"} <= tags.keys()
    assert hr.load(run.path).predict([0.0, 0.0])[0] in (0, 1)


def test_a_replay_that_does_not_fit_is_refused_before_the_start(tmp_path):
    with pytest.raises(
        MemoryError, match=r"replay: 8,000,000,000,000 steps x 19 bytes .* set buffer_size to [\d,]+ or"
    ):
        hr.Trainer("dqn", Walk(), **(TINY | {"buffer_size": 8 * 10**12}))


@pytest.mark.parametrize("settings", [{}, {"prioritized": True, "n_steps": 3, "exploration_spread": 3.0}])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path, monkeypatch, settings):
    monkeypatch.chdir(tmp_path)
    options = TINY | {"normalize_observation": True, "save_freq": 300} | settings
    straight = hr.train("dqn", Walk(), **options)
    shared = hr.train("dqn", Walk(), **options)
    steps = sorted(shared.path.glob("step_*"), key=lambda path: int(path.name.partition("_")[2]))
    resumed = hr.train(resume=steps[1], env=Walk(), progress="none")
    ends = [checkpoint.load(run.path / "last", "training") for run in (straight, resumed)]
    for end in ends:
        del end["learner"]["seconds"]
    assert same(*ends) and same(dict(straight.policy.state_dict()), dict(resumed.policy.state_dict()))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_steps": 0}, "n_steps must be 1 or more, got 0"),
        ({"exploration_final": 1.5}, r"exploration_final must lie in \[0, 1\], got 1.5"),
        ({"exploration_spread": -1.0}, r"exploration_spread must be 0 or more, got -1.0"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be above 0, got 0.0"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        DQNConfig(**settings)


def test_the_target_shares_the_statistics_of_observations_and_nothing_else():
    dqn = DQN.build(DQNConfig(hidden=(4,)), Box(-9, 9, (3,)), Discrete(2), 0, "cpu")
    dqn.policy.encoder.update_statistics(torch.randn(50, 3) * 5, torch.ones(50, dtype=torch.bool))
    with torch.no_grad():
        dqn.optimizer.flat.add_(1)
    x = torch.randn(6, 3)
    assert torch.equal(dqn.policy.encoder(x), dqn.networks.target.encoder(x)) and not torch.equal(
        dqn.policy(x), dqn.networks.target(x)
    )


def test_a_ring_is_as_long_as_asked():
    replay = collected(buffer_size=333).algorithm.replay
    assert type(replay) is Replay and replay.length == 41


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("env", "least"), [("CartPole-v1", 475), ("Acrobot-v1", -100), ("Catch", 0.9)])
def test_it_solves(env, least, seed, tmp_path):
    run = hr.train("dqn", env, seed=seed, log_folder=str(tmp_path), progress="none")
    assert run.evaluate(100).mean >= least
