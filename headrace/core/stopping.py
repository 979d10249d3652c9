"""Ending long work between two of its steps."""

from __future__ import annotations


class Stopped(Exception):
    """A rollout or an evaluation was given up between two steps, because of a signal or a limit."""
