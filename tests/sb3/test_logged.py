"""Values that callbacks and users find in the logger and in the locals of learn()."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.sb3 import DQN, PPO, make_vec_env
from tests.sb3.test_callbacks import BaseCallback


class Looks(BaseCallback):
    """Keeps what the logger has at the end of each rollout."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, Any]] = []

    def on_rollout_end(self) -> None:
        self.found.append(dict(self.model.logger.name_to_value))


def model(n_envs: int = 1) -> PPO:
    env = make_vec_env("CartPole-v1", n_envs)
    return PPO("MlpPolicy", env, n_steps=16, batch_size=16, n_epochs=2, seed=0, device="cpu")


def test_the_last_updates_values_are_in_the_logger_until_the_next_table():
    learned, looks, tables = model(), Looks(), []
    dump = learned.logger.dump
    learned.logger.dump = lambda step: (tables.append(dict(learned.logger.name_to_value)), dump(step))
    learned.learn(48, callback=looks)
    assert looks.found[0] == {} and [found["train/n_updates"] for found in looks.found[1:]] == [2, 4]
    assert "train/loss" not in tables[0] and "time/fps" in tables[0] and "time/fps" not in looks.found[1]
    assert [table["train/loss"] for table in tables[1:]] == [found["train/loss"] for found in looks.found[1:]]
    left = learned.logger.name_to_value
    assert left["train/n_updates"] == 6 and left["train/loss"] not in [table.get("train/loss") for table in tables]


def test_values_stay_between_tables_that_are_rare():
    learned, looks = model(), Looks()
    learned.learn(64, callback=looks, log_interval=3)
    assert [found.get("train/n_updates") for found in looks.found] == [None, 2, 4, 6]


def test_a_model_with_a_replay_buffer_keeps_them_too():
    learned = DQN("MlpPolicy", "CartPole-v1", learning_starts=8, train_freq=4, batch_size=8, seed=0, device="cpu")
    learned.learn(100)
    assert {"train/loss", "train/n_updates", "train/learning_rate"} <= learned.logger.name_to_value.keys()


class Reads(BaseCallback):
    def on_rollout_end(self) -> None:
        self.said.append(self.locals["infos"])


class ReadsSteps(Reads):
    def _on_step(self) -> bool:
        return len(self.locals["infos"]) == 1


def test_locals_say_what_they_have():
    with pytest.raises(
        KeyError, match=r"no 'infos', but self, total_timesteps, log_interval: .* more than return True"
    ):
        model().learn(16, callback=Reads())
    reads = ReadsSteps()
    model().learn(16, callback=reads)
    read = [said for said in reads.said if isinstance(said, list)]
    assert len(read) == 1 and isinstance(read[0][0], dict) and reads.locals.get("unknown") is None


@pytest.mark.parametrize(("n_envs", "text"), [(1, "of 1 environment, with"), (2, "of 2 environments, with")])
def test_the_cost_of_calls_names_the_number_of_environments(n_envs, text, capsys):
    model(n_envs).learn(8, callback=lambda local, _: True)
    assert text in capsys.readouterr().err
