"""collection="overlapped" without actors: a thread steps a library's environments while the policy learns."""

from __future__ import annotations

import threading
from contextlib import closing

import gymnasium
import pytest
import torch

import headrace as hr
from headrace.parallel.apart_collector import ApartCollector
from headrace.training.trainer import Trainer

SMALL = {"num_envs": 8, "num_steps": 8, "hidden": (8,), "progress": "none", "collection": "overlapped", "scale": False}
PPO = SMALL | {"minibatch_size": 32, "epochs": 2}


class Counted:
    """Environments that count steps, of a library whose function takes `num_envs`."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs, self.device = num_envs, torch.device("cpu")
        self.observation_space = gymnasium.spaces.Box(-1e6, 1e6, (1,))
        self.action_space = gymnasium.spaces.Discrete(2)
        self.steps, self.fails_at, self.thread = 0, -1, threading.current_thread()
        self.stepped = threading.Event()

    def _seen(self) -> torch.Tensor:
        return torch.full((self.num_envs, 1), float(self.steps))

    def reset(self, seed=None):
        return self._seen()

    def step(self, action):
        self.steps += 1
        self.thread = threading.current_thread()
        self.stepped.set()
        if self.steps == self.fails_at:
            raise RuntimeError("the simulator lost its robot")
        nothing = torch.zeros(self.num_envs, dtype=torch.bool)
        return self._seen(), torch.ones(self.num_envs), nothing, nothing


def counted(num_envs: int) -> Counted:
    return Counted(num_envs)


def inside(trainer: Trainer) -> Counted:
    return trainer.env.source.simulator


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([x.detach().flatten().double() for x in (*trainer.policy.parameters(), *trainer.policy.buffers())])


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("ppo", PPO | {"normalize_observation": True}),
        ("ppo", PPO | {"stagger": True, "num_steps": 100, "recurrent": "gru", "minibatch_size": 400}),
        ("sac", SMALL | {"learning_starts": 32, "batch_size": 16}),
    ],
)
def test_weights_are_those_with_an_actor(algorithm, options):
    pytest.importorskip("mujoco")
    found = []
    for more in ({"env": "mujoco/InvertedPendulum-v5"}, {"env": "InvertedPendulum-v5", "actors": 1}):
        with closing(Trainer(algorithm, more.pop("env"), **options, **more)) as trainer:
            assert isinstance(trainer.collector, ApartCollector) == (not more)
            lags = []
            for _ in range(5):
                trainer.iterate()
                lags.append(trainer.collector.rollout.lag.mean().item())
            assert lags == [0.0, 1.0, 1.0, 1.0, 1.0]
            found.append(weights(trainer))
    assert torch.equal(*found)


def test_environments_step_while_the_policy_learns():
    with hr.Training("ppo", counted, **PPO, total_steps=8 * 8 * 4) as training:
        simulator = inside(training.trainer)
        for result in training:
            # one rollout more than was learned from, without anything asking for it
            for _ in range(8):
                if simulator.steps < result.steps // 8 + 8:
                    simulator.stepped.clear()
                    simulator.stepped.wait(10)
            assert simulator.steps == result.steps // 8 + 8
            assert simulator.thread is not threading.current_thread()
            assert training.trainer.collector.steps * 8 == result.steps
    assert not any(thread.name.startswith("collector") for thread in threading.enumerate())


def test_a_checkpoint_is_of_what_was_learned_from():
    with closing(Trainer("ppo", counted, **PPO)) as first, closing(Trainer("ppo", counted, **PPO)) as second:
        for _ in range(3):
            first.iterate()
        state = first.state_dict()
        assert state["collectors"][0]["steps"] == 24
        row = state["collectors"][0]["bootstrap_row"]["observation"]
        assert torch.equal(row, first.collector.rollout.observation[-1])
        second.iterate()
        second.load_state_dict(state)
        assert second.collector.steps == 24 and torch.equal(weights(first), weights(second))
        second.iterate()
        assert second.collector.steps == 32 and second.collector.rollout.lag.eq(0).all()


def test_what_a_step_raises_is_raised_once_its_rollout_is_asked_for():
    with closing(Trainer("ppo", counted, **PPO)) as trainer:
        inside(trainer).fails_at = 13
        trainer.iterate()
        with pytest.raises(RuntimeError, match="the simulator lost its robot"):
            trainer.iterate()


def test_it_stops_between_two_steps():
    began = threading.Event()

    class Endless(Counted):
        def step(self, action):
            if self.steps > 12:
                began.set()
            return super().step(action)

    with closing(Trainer("ppo", lambda num_envs: Endless(num_envs), **PPO | {"num_steps": 1000})) as trainer:
        trainer.iterate()
        before = trainer.collector.state_dict()
        assert began.wait(10)
    assert before["steps"] == 1000


def test_parameters_cannot_be_set_meanwhile():
    with (
        closing(Trainer("ppo", counted, **PPO)) as trainer,
        pytest.raises(ValueError, match="collection='overlapped' steps them while"),
    ):
        trainer.env.set_params(gravity=3.0)


def test_a_vector_of_the_user_is_stepped_by_a_thread_too():
    envs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 8)
    with closing(Trainer("a2c", envs, **SMALL | {"num_envs": 8})) as trainer:
        for _ in range(3):
            trainer.iterate()
        assert isinstance(trainer.collector, ApartCollector) and weights(trainer).isfinite().all()


def test_one_that_a_process_has_once_only_is_refused():
    class Single(Counted):
        single = True

    with pytest.raises(ValueError, match=r"learns or is evaluated, and a process has those of .* once only"):
        Trainer("ppo", lambda num_envs: Single(num_envs), **PPO)


def test_compiled_environments_have_actors_as_before(capsys):
    with closing(Trainer("ppo", "CartPole-v1", **PPO)) as trainer:
        assert trainer.config.actors
    assert "starts actors" in capsys.readouterr().err
