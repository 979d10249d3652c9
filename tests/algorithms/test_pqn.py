"""PQN: its returns and its learning call against independent ones, and that it learns."""

from __future__ import annotations

import json

import pytest
import torch
from helpers.corridor import Corridor
from helpers.same import same
from helpers.tiny import Walk
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.algorithms.pqn import PQN, PQNConfig, learn
from headrace.data.rollout import Rollout
from headrace.data.spaces import Box, Discrete, action_column, env_columns
from headrace.runs import checkpoint

TINY = {
    "num_steps": 16,
    "epochs": 2,
    "minibatch_size": 32,
    "hidden": (16,),
    "learning_rate": 3e-3,
    "progress": "none",
}


def made_up(pqn: PQN, num_envs: int, ends: float, seed: int) -> Rollout:
    """A rollout of random numbers and endings, with the masked steps that follow them."""
    generator = torch.Generator().manual_seed(seed)
    columns = env_columns(pqn.policy.observation_space) | {"action": action_column(pqn.policy.action_space)}
    rollout = Rollout(pqn.num_steps, num_envs, columns | pqn.columns())
    rollout.observation.copy_(torch.randn(rollout.observation.shape, generator=generator))
    rollout.value.copy_(torch.randn(rollout.value.shape, generator=generator))
    start = pqn.policy.start
    rollout.action.copy_(torch.randint(start, start + 3, rollout.action.shape, generator=generator))
    rollout.valid[0] = True
    for t in range(pqn.num_steps):
        live, draw = rollout.valid[t], torch.rand(2, num_envs, generator=generator)
        rollout.reward[t] = draw[0] * live
        rollout.terminated[t] = live & (draw[1] < ends / 2)
        rollout.truncated[t] = live & (draw[1] > 1 - ends / 2)
        rollout.valid[t + 1] = ~(rollout.terminated[t] | rollout.truncated[t])
    return rollout


def made(**options) -> PQN:
    config = PQNConfig(**({"num_steps": 7, "hidden": (6, 5), "normalize_observation": False} | options))
    return PQN.build(config, Box(-9, 9, (4,)), Discrete(3, start=2), 1, "cpu")


@given(st.floats(0, 1), st.floats(0, 1), st.sampled_from((0.0, 0.3, 0.9)), st.integers(0, 2**31))
@settings(max_examples=40)
def test_returns_are_those_of_the_papers_recursion(gamma, q_lambda, ends, seed):
    pqn = made(gamma=gamma, q_lambda=q_lambda)
    rollout = made_up(pqn, 3, ends, seed)
    returns, last = pqn.process(rollout).returns, rollout.num_steps - 1

    def expected(t: int, n: int) -> float:
        following = rollout.value[t + 1, n].item()
        if rollout.terminated[t, n]:
            return rollout.reward[t, n].item()
        if rollout.truncated[t, n] or t == last:
            return rollout.reward[t, n].item() + gamma * following
        further = q_lambda * expected(t + 1, n) + (1 - q_lambda) * following
        return rollout.reward[t, n].item() + gamma * further

    for t in range(rollout.num_steps):
        for n in range(rollout.num_envs):
            if rollout.valid[t, n]:
                assert returns[t, n].item() == pytest.approx(expected(t, n), abs=1e-4)


def q_values(w: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """[rows, actions], by the formulas of a dense layer and of layer normalisation."""
    for layer in range(2):
        x = x @ w[f"trunk.layers.{layer}.weight"].T + w[f"trunk.layers.{layer}.bias"]
        centred = x - x.mean(1, keepdim=True)
        x = centred / (centred.pow(2).mean(1, keepdim=True) + 1e-5).sqrt()
        x = (x * w[f"trunk.norms.{layer}.weight"] + w[f"trunk.norms.{layer}.bias"]).clamp(min=0)
    return x @ w["out.weight"].T + w["out.bias"]


@pytest.mark.parametrize("max_grad_norm", [0.2, 100.0])
def test_learning_equals_an_independent_implementation(max_grad_norm):
    pqn = made(minibatch_size=9, max_grad_norm=max_grad_norm, learning_rate=1e-2)
    rollout = made_up(pqn, 4, 0.3, 3)
    returns, order = torch.randn(7, 4), torch.stack([torch.randperm(28) for _ in range(2)])
    w = {name: x.detach().double() for name, x in pqn.policy.named_parameters()}
    moments = {name: (torch.zeros_like(x), torch.zeros_like(x)) for name, x in w.items()}
    observation, action = rollout.observation[:7].reshape(28, 4).double(), rollout.action.flatten().long() - 2
    valid, aim = rollout.valid[:7].flatten(), returns.flatten().double()
    losses, step = [], 0
    for rows in order:
        for index in rows[:27].split(9):
            kept = index[valid[index]]  # masked steps are not there at all
            for x in w.values():
                x.requires_grad_()
            value = q_values(w, observation[kept])[range(len(kept)), action[kept]]
            loss = 0.5 * (value - aim[kept]).pow(2).mean()
            gradients = torch.autograd.grad(loss, list(w.values()))
            scale = min(1.0, max_grad_norm / sum((g**2).sum() for g in gradients) ** 0.5)
            step += 1
            with torch.no_grad():
                for (name, x), g in zip(w.items(), gradients, strict=True):
                    m, v = moments[name]
                    m.mul_(0.9).add_(0.1 * scale * g)
                    v.mul_(0.999).add_(0.001 * (scale * g) ** 2)
                    x -= 1e-2 * m / (1 - 0.9**step) / ((v / (1 - 0.999**step)).sqrt() + pqn.optimizer.eps)
            losses.append(loss.detach())
            w = {name: x.detach() for name, x in w.items()}
    metrics = learn(pqn.policy, pqn.optimizer, rollout, returns, order, pqn.config)
    torch.testing.assert_close(metrics["loss"].double(), torch.stack(losses).mean(), rtol=1e-4, atol=1e-5)
    for name, x in pqn.policy.named_parameters():
        torch.testing.assert_close(x.detach().double(), w[name], rtol=1e-3, atol=1e-4, msg=name)


def test_it_walks_a_corridor():
    trainer = hr.Trainer("pqn", Corridor(16), total_steps=12_000, gamma=0.9, exploration_final=0.02, **TINY)
    while not trainer.reason_to_stop():
        trainer.iterate()
    assert trainer.episodes.mean_return() > 0.5  # 0.6 is all there is


def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = TINY | {"total_steps": 1500, "save_freq": 500}
    straight = hr.train("pqn", Walk(), **options)
    shared = hr.train("pqn", Walk(), **options)
    steps = sorted(shared.path.glob("step_*"), key=lambda path: int(path.name.partition("_")[2]))
    resumed = hr.train(resume=steps[0], env=Walk(), progress="none")
    ends = [checkpoint.load(run.path / "last", "training") for run in (straight, resumed)]
    for end in ends:
        del end["learner"]["seconds"]
    assert same(*ends) and same(dict(straight.policy.state_dict()), dict(resumed.policy.state_dict()))
    row = json.loads((straight.path / "metrics.jsonl").read_text().splitlines()[-1])
    assert {"loss", "q_value", "explained_variance", "learning_rate", "exploration_rate"} <= row.keys()


def test_settings_out_of_range_are_refused():
    with pytest.raises(ValueError, match=r"q_lambda must lie in \[0, 1\], got 2"):
        PQNConfig(q_lambda=2.0)
    with pytest.raises(ValueError, match="minibatch_size must be 1 or more, got 0"):
        PQNConfig(minibatch_size=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("env", "least"), [("CartPole-v1", 475), ("Acrobot-v1", -100), ("Catch", 0.9)])
def test_it_solves(env, least, seed, tmp_path):
    run = hr.train("pqn", env, seed=seed, log_folder=str(tmp_path), progress="none")
    assert run.evaluate(100).mean >= least
