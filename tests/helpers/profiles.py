"""Profiles with known figures, and a helper for diagnosed scripts."""

from __future__ import annotations

from headrace.diagnose.profile.profile import Ending, Exit, Kind, Lane, Machine, Profile, Role, Series, Site, Span
from headrace.diagnose.verdict.profile_facts import Facts

SECONDS = 50.0
SEEN = """
def seen(pid=None):  # whether a process that is diagnosed, this one or another, has left samples of its main thread
    import json, os, pathlib
    pid = pid or os.getpid()
    files = pathlib.Path(json.loads(os.environ["HEADRACE_DIAGNOSE"])["folder"]).glob(f"{pid}-*.jsonl")
    return any(f'["samples",[[{pid},' in file.read_text() for file in files)
"""  # for scripts that have to run until they were seen, however busy the machine is


def lane(pid: int = 100, kind: Kind = Kind.MAIN, name: str = "main", turns: int = 20, **shares: float) -> Lane:
    """A thread with the given shares of SECONDS by role (ENVIRONMENT=0.7, ...), repeated `turns` times."""
    spans, now = [], 0.0
    for _ in range(turns):
        for role, share in shares.items():
            length = share * SECONDS / turns
            spans.append(Span(now, now + length, Role[role], DETAILS.get(role, "")))
            now += length
    seconds = {Role[role]: share * SECONDS for role, share in shares.items()}
    return Lane(pid, pid, 1 if kind is Kind.MAIN else 100, name, kind, spans, seconds, [], SECONDS, samples=10_000)


DETAILS = {"ENVIRONMENT": "CartPoleEnv.step", "OPTIMIZER": "Adam.step", "INFERENCE": "Linear.forward"}


def worker(number: int, busy: float) -> Lane:
    """A process that steps environments for a share of the time and waits for the rest."""
    made = lane(200 + number, Kind.WORKER, f"worker {number}", ENVIRONMENT=busy, WAIT=1 - busy)
    made.cpu_seconds = busy * SECONDS
    return made


def profile(
    *others: Lane, cores: int = 4, gpu: str = "", counters: dict[str, float] | None = None, **shares
) -> Profile:
    """A profile whose training thread has these shares."""
    shares = shares or {"ENVIRONMENT": 0.71, "INFERENCE": 0.09, "FORWARD": 0.06, "BACKWARD": 0.08, "OPTIMIZER": 0.06}
    machine = Machine("Test CPU", cores, gpu, "3.11.2", "Linux", {"torch": "2.13.0", "gymnasium": "1.4.0"})
    times = [0.1 * i for i in range(500)]
    return Profile(
        ["train.py"],
        1.7e9,
        SECONDS,
        10.0,
        Exit(Ending.TIME_LIMIT),
        machine,
        [lane(**shares), *others],
        [Series("cores", "cores", times, [1.0] * 500, 100)],
        dict(counters or {}),
        {},
        0.005,
        0.01,
        ["native code is seen as the Python line that called it"],
    )


def facts(*others: Lane, **options) -> Facts:
    """The same as Facts."""
    return Facts(profile(*others, **options))


def site(role: Role, seconds: float, text: str = "", line: int = 12, own: bool = True) -> Site:
    """A costly line."""
    return Site(role, "/home/me/train.py", line, "main", "", seconds, text, own)
