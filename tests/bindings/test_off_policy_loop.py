"""The compiled loop of off-policy algorithms against plain functions on the same numbers, and against rollouts of one
step."""

import copy
from contextlib import closing

import gymnasium
import pytest
import torch
from helpers.same import flat_weights

from headrace import Trainer
from headrace.algorithms.objectives import mean_weights
from headrace.algorithms.off_policy import learn_from_replay
from headrace.bindings.collecting import acting, compiled_replay, replay_loop
from headrace.bindings.compiled import loss_program
from headrace.core import rng
from headrace.core.fused import kernel_of, plain_only
from headrace.data.priorities import PrioritizedReplay
from headrace.data.replay import DRAWS
from headrace.parallel import learning_collector
from headrace.parallel.learning_collector import LearningCollector

OPTIONS = {
    **{"num_envs": 2, "learning_starts": 30, "hidden": (16, 16), "total_steps": 10**6, "buffer_size": 120},
    **{"seed": 3, "schedule": "constant", "normalize_observation": False, "threads": 1, "time_limit": 17},
}
EXPLORATION = {"exploration_initial": 0.2, "exploration_final": 0.2}
CASES = {
    "sac": ("Pendulum-v1", {"batch_size": 70, "learning_rate": 1e-3}),
    "tqc": ("Pendulum-v1", {"batch_size": 24, "critic_hidden": (16, 16), "critics": 2}),
    "td3": ("Pendulum-v1", {"batch_size": 24, "n_steps": 3}),
    "ddpg": ("Pendulum-v1", {"batch_size": 24}),
    "dqn": (
        "CartPole-v1",
        {"batch_size": 24, "prioritized": False} | EXPLORATION,
    ),
    "dqn, prioritized": (
        "CartPole-v1",
        {"batch_size": 24, "prioritized": True, "n_steps": 3, "priority_beta": 0.4} | EXPLORATION,
    ),
    "dqn, dueling with layer normalisation": (
        "CartPole-v1",
        {"batch_size": 24, "prioritized": False, "dueling": True, "layer_norm": True} | EXPLORATION,
    ),
}


def trained(name, iterations=40, **settings):
    """A trainer after 40 iterations of the algorithm; its last metrics."""
    env, own = CASES[name]
    trainer = Trainer(name.partition(",")[0], env, **OPTIONS | own | settings)
    while trainer.algorithm.iteration < iterations:
        result = trainer.iterate()
    trainer.close()
    return trainer, result.metrics


def columns(trainer):
    return dict(trainer.algorithm.replay._stored())


@pytest.mark.parametrize("name", CASES)
def test_learning_while_collecting_is_what_short_rollouts_learn(name):
    """Rows and weights with train_freq 2 have the bits of rollouts of 2 steps; the ring was overwritten."""
    settings = {"gradient_steps": 3}
    if "prioritized" in name:
        settings["priority_beta"] = 1.0  # as it becomes at the end, step by step or rollout by rollout
    short, _ = trained(name, num_steps=2, **settings)
    long, _ = trained(name, num_steps=20, train_freq=2, **settings)
    assert short.algorithm.updates == long.algorithm.updates > 0
    assert torch.equal(flat_weights(short), flat_weights(long))
    for path, column in columns(short).items():
        assert torch.equal(column, columns(long)[path]), path
    assert not columns(long)["valid"].all()  # masked rows are among them
    for optimizer, other in zip(short.algorithm.optimizers.values(), long.algorithm.optimizers.values(), strict=True):
        assert optimizer.steps == other.steps


@pytest.mark.parametrize("name", ["sac", "dqn"])
def test_environments_in_python_are_stepped_between_the_parts_of_the_loop(name):
    """The rows of Gymnasium's environments, again equal to those of short rollouts."""
    short, _ = trained(name, num_steps=1, backend="inline", gradient_steps=1)
    long, _ = trained(name, num_steps=10, train_freq=1, backend="inline", gradient_steps=1)
    assert torch.equal(flat_weights(short), flat_weights(long))
    assert all(torch.equal(column, columns(long)[path]) for path, column in columns(short).items())


@pytest.mark.parametrize("name", CASES)
def test_the_loop_learns_what_plain_functions_learn(name):
    """The same first rows; after a few gradient steps the same weights within rounding, and the same metrics."""
    settings = {"num_steps": 8, "train_freq": 2, "iterations": 20, "gradient_steps": 1}
    if not name.startswith("dqn"):
        settings["normalize_observation"] = True
    trainer, metrics = trained(name, **settings)
    with plain_only():
        plain, of_plain = trained(name, **settings)
    assert trainer.algorithm.updates == plain.algorithm.updates >= 5
    torch.testing.assert_close(flat_weights(trainer), flat_weights(plain), rtol=1e-4, atol=1e-5)
    for key, value in of_plain.items():
        assert metrics[key] == pytest.approx(value, rel=1e-3, abs=1e-4), key


@pytest.mark.parametrize("train_freq", [0, 2])
@pytest.mark.parametrize("name", CASES)
def test_an_epsilon_of_adam_that_is_edited_later_takes_effect(name, train_freq):
    """Kernels keep what they are given; after an edit they learn what plain functions learn."""

    def edited(eps):
        env, own = CASES[name]
        settings = OPTIONS | own | {"num_steps": 8, "gradient_steps": 1, "train_freq": train_freq}
        trainer = Trainer(name.partition(",")[0], env, **settings)
        for iteration in range(8):
            if iteration == 4:
                for optimizer in trainer.algorithm.optimizers.values():
                    optimizer.eps = eps
            trainer.iterate()
        trainer.close()
        return flat_weights(trainer)

    found = edited(1e-2)
    with plain_only():
        plain = edited(1e-2)
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-5)
    assert (found - edited(1e-8)).abs().max() > 1e-4


@pytest.mark.parametrize(("name", "n_steps"), [("sac", 1), ("td3", 4), ("dqn", 3), ("dqn, prioritized", 3)])
def test_minibatches_are_the_plain_ones(name, n_steps):
    """Rows have the bits of draw() and gather() of the same draws, masked rows included; so have the losses' draws."""
    trainer, _ = trained(name, n_steps=n_steps, num_steps=2, gradient_steps=2)
    algorithm, replay = trainer.algorithm, trainer.algorithm.replay
    updates = algorithm.updates
    replay.ring.valid &= torch.rand(replay.ring.valid.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    before = copy.deepcopy(replay)
    learn_from_replay(algorithm, 2)
    memory = compiled_replay._memory.last(algorithm)
    shape = (2, algorithm.config.batch_size, DRAWS + algorithm.num_draws())
    random = rng.uniform(algorithm.seed, rng.Purpose.REPLAY, updates, *shape, "cpu")
    batch = before.gather(before.draw(random[..., :DRAWS]), algorithm.config.gamma)
    assert 0 < batch.weight.mean() < 1
    found = {name: column[:, : shape[1]] for name, column in memory.columns.items()}
    for column in ("observation", "next_observation", "action", "reward", "discount"):
        assert torch.equal(found[column], getattr(batch, column)), column
    assert algorithm.num_draws() == 0 or torch.equal(found["random"], random[..., DRAWS:])
    torch.testing.assert_close(found["weight"], torch.stack([mean_weights(each) for each in batch.weight]))
    if isinstance(before, PrioritizedReplay):
        error = torch.from_numpy(compiled_replay._calls.last(algorithm).learning.error)
        before.update(batch.rows, error.view(2, -1)[:, : shape[1]])
        torch.testing.assert_close(replay.tree, before.tree, rtol=1e-12, atol=0)
        torch.testing.assert_close(replay.highest, before.highest, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("random", [0.0, 1.0])
def test_acting_is_the_plain_policy(name, random):
    trainer, _ = trained(name, iterations=16, num_steps=2, gradient_steps=1, num_envs=70, buffer_size=5000)
    policy = trainer.policy
    if name.startswith("dqn"):
        policy.exploration.fill_(0.3)
    else:
        policy.random.fill_(random)
    observation = torch.randn(70, policy.encoder.size, generator=torch.Generator().manual_seed(1))
    draws = torch.rand(70, policy.num_draws, generator=torch.Generator().manual_seed(2))
    act = type(policy).act
    with torch.no_grad():
        for given in (draws, None):
            assert kernel_of(act, policy, observation, None, given).__module__ == acting.__name__
            found, plain = policy.act(observation, None, given), act.plain(policy, observation, None, given)
            torch.testing.assert_close(found.action, plain.action, rtol=1e-5, atol=1e-5)
            assert found.action.dtype == plain.action.dtype
            if name.startswith("dqn"):
                torch.testing.assert_close(found.value, plain.value, rtol=1e-5, atol=1e-5)
            alone = policy.act(observation[:1], None, None if given is None else given[:1])
            assert torch.equal(alone.action, found.action[:1])  # the same bits in any batch
    assert kernel_of(act, policy, observation, None, draws) is None  # where gradients may be wanted


def test_own_classes_and_priorities_that_nobody_sets_learn_by_their_own_functions():
    random = torch.rand(10, 2, 2)
    trainer, _ = trained("sac", num_steps=10, train_freq=2)
    algorithm, replay = trainer.algorithm, trainer.algorithm.replay
    algorithm.replay = PrioritizedReplay(trainer.collector.rollout, 120)
    assert kernel_of(learning_collector.steps, trainer.collector, random) is None
    algorithm.replay = replay
    assert kernel_of(learning_collector.steps, trainer.collector, random) is compiled_replay.collect
    trainer.algorithm.learn = lambda batches, random: {}
    assert kernel_of(learning_collector.steps, trainer.collector, random) is None


def test_plain_torch_learns_while_collecting():
    """The plain loop, with gradients by autograd."""
    with plain_only():
        trainer, metrics = trained("sac", num_steps=10, train_freq=2, activation="elu", gradient_steps=1)
        assert kernel_of(learning_collector.steps, trainer.collector, torch.rand(10, 2, 2)) is None
    assert trainer.algorithm.updates == metrics["n_updates"] > 0
    assert metrics["critic_loss"] > 0


class Failing(gymnasium.Wrapper):
    """Fails at its 60th step."""

    count = 0

    def step(self, action):
        self.count += 1
        if self.count == 60:
            raise ArithmeticError("a step that fails")
        return self.env.step(action)


@pytest.mark.parametrize(
    ("backend", "worth", "expected"),
    [
        ("cpu", 0.0, [2]),  # 20 steps in one run, in which it learns four times
        ("inline", 1e12, [1] * 40),  # acting and learning apart, once in five steps
        ("inline", 0.0, [*[1] * 9, 2] * 4),
    ],
)
def test_threads_help_where_there_is_enough_to_learn(backend, worth, expected, monkeypatch):
    """Threads help in runs that learn. Without learning, no thread is woken."""
    monkeypatch.setenv("HEADRACE_THREADS", "2")
    monkeypatch.setattr(loss_program, "WORTH_HELP", worth)
    given = []

    def run(self, call, threads):
        given.append(threads)
        call()

    own = {"num_envs": 1, "num_steps": 20, "train_freq": 5, "gradient_steps": 3, "batch_size": 70, "backend": backend}
    with closing(Trainer("sac", "Pendulum-v1", **OPTIONS | own)) as trainer:
        while not trainer.algorithm.updates:
            trainer.iterate()
        monkeypatch.setattr(replay_loop.WorkQueue, "run", run)
        trainer.iterate()
    assert given == expected


def test_an_environments_error_leaves_the_counts_of_what_was_learned():
    trainer = Trainer(
        "sac",
        lambda: Failing(gymnasium.make("Pendulum-v1")),
        **OPTIONS | {"num_envs": 1, "num_steps": 50, "train_freq": 1, "batch_size": 24, "gradient_steps": 1},
    )
    trainer.iterate()
    with pytest.raises(ArithmeticError, match="a step that fails"):
        trainer.iterate()
    assert trainer.algorithm.updates == trainer.algorithm.optimizers["critics"].steps > 0
    trainer.close()


def test_what_train_freq_does_not_go_with_is_said():
    with pytest.raises(ValueError, match="let it divide num_steps"):
        Trainer("sac", "Pendulum-v1", num_steps=10, train_freq=3)
    with pytest.raises(ValueError, match="train_freq=1 is for environments with one agent, without actors"):
        Trainer(
            "sac",
            "Pendulum-v1",
            num_envs=2,
            num_steps=2,
            train_freq=1,
            backend="workers",
            workers=2,
            collection="async",
        )


def test_a_stopped_training_finishes_its_rollout():
    trainer, _ = trained("sac", num_steps=10, train_freq=1, backend="inline")
    before = trainer.steps
    assert isinstance(trainer.collector, LearningCollector)
    trainer = Trainer("sac", "Pendulum-v1", **OPTIONS | {"num_steps": 10, "train_freq": 1, "backend": "inline"})
    assert trainer.iterate(lambda: True).steps == 20
    assert before > 0
    trainer.close()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (8, 1)),  # 8 environments are registered
        ({"num_envs": 1}, (64, 2)),  # utd_ratio is 0.5: a gradient step every 2 steps
        ({"num_envs": 40}, (1, 0)),
        ({"num_steps": 1}, (1, 0)),
        ({"actors": 1}, (1, 0)),
        ({"shards": 2}, (1, 0)),
    ],
)
def test_short_rollouts_become_longer_where_that_is_one_call(options, expected):
    trainer = Trainer("sac", "Pendulum-v1", progress="none", scale=False, **options)
    config = trainer.algorithm.config
    trainer.close()
    assert (config.num_steps, config.train_freq) == expected


def test_for_environments_in_python_a_line_says_what_is_faster(capsys):
    Trainer("sac", "Pendulum-v1", progress="none", backend="inline", num_envs=1).close()
    assert "num_steps=64 and train_freq=2 learn as often with fewer calls" in capsys.readouterr().err
