"""The number of cores respects what control groups grant, of both versions."""

import math
import os
from pathlib import Path

import pytest

from headrace.core import cores
from headrace.core.cores import quota


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "granted"),
    [
        ({}, math.inf),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, math.inf),
        (
            {
                "proc/self/cgroup": "0::/jobs/mine\n",
                "sys/fs/cgroup/jobs/mine/cpu.max": "max 100000\n",
                "sys/fs/cgroup/jobs/cpu.max": "300000 100000\n",  # of the group around it
            },
            3.0,
        ),
        (
            {
                "proc/self/cgroup": "5:memory:/docker/a\n4:cpu,cpuacct:/docker/a\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",  # a container sees its own group as the root
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu:/a\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
            },
            math.inf,
        ),
    ],
)
def test_quotas_of_control_groups(files, granted, tmp_path):
    assert quota(written(tmp_path, files)) == granted


@pytest.mark.parametrize(("granted", "expected"), [(0.5, 1), (1.2, 2), (2.0, 2), (math.inf, 4), (9.0, 4)])
def test_a_quota_is_rounded_up_to_whole_cores(granted, expected, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)), raising=False)
    monkeypatch.setattr(cores, "quota", lambda: granted)
    assert cores.cores() == expected
