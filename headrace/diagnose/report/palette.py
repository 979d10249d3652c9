"""A colour for each role: similar hues of different lightness for related roles."""

from __future__ import annotations

from headrace.diagnose.profile.profile import Role

COLOURS = {
    Role.ENVIRONMENT: "#e8833a",
    Role.INFERENCE: "#3b7dd8",
    Role.FORWARD: "#9bd0a5",
    Role.BACKWARD: "#4fa96b",
    Role.OPTIMIZER: "#22744a",
    Role.COPY: "#c65b9a",
    Role.LAUNCH: "#e59bc4",
    Role.WAIT: "#c9ced6",
    Role.EVALUATION: "#7d5bbe",
    Role.DATA: "#4fb8c4",
    Role.LOGGING: "#d8b63a",
    Role.SAVING: "#a08434",
    Role.START_UP: "#7b8794",
    Role.IDLE: "#e4e7eb",
    Role.OTHER: "#9aa5b1",
}
STEPPED_ELSEWHERE = "#f3bf96"  # waiting for the processes that step environments
ORDER = list(COLOURS)  # from left to right in a bar
