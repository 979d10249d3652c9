"""Names that were perhaps meant."""

import pytest

from headrace.core.text import did_you_mean

KNOWN = [
    "CartPole-v0",
    "CartPole-v1",
    "Boxing-v0",
    "Pong-v0",
    "ALE/Pong-v5",
    "Bowling-v0",
    "GridWorld",
    "pursuit_v4",
    "ppo",
    "appo",
]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("CartPole-v7", "; did you mean 'CartPole-v1'?"),  # the newest
        ("cartpole-v0", "; did you mean 'CartPole-v0'?"),  # nothing but letters of the other case
        ("CartPile", "; did you mean 'CartPole-v1'?"),
        ("Nothing-v0", ""),  # only its version is like those of others
        ("Bowl-v0", "; did you mean 'Bowling-v0'?"),
        ("ale/pong-v4", "; did you mean 'ALE/Pong-v5'?"),
        ("pursuit_v5", "; did you mean 'pursuit_v4'?"),
        ("gridword", "; did you mean 'GridWorld'?"),
        ("pppo", "; did you mean 'ppo' or 'appo'?"),
        ("v0", ""),
        ("", ""),
    ],
)
def test_names_that_are_close(name, hint):
    assert did_you_mean(name, iter(KNOWN)) == hint
