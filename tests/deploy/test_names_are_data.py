"""Names of observations are data in exported files, which export() runs, and which users compile."""

from __future__ import annotations

import pytest

import headrace as hr
from headrace.deploy import exporter

KEYS = ['a=open("RAN", "w")', 'a"""; open("RAN", "w"); """', "a*/ int ran; /*", "a\nopen('RAN', 'w')"]
KEYS += ["x_y", "x-y", "x y", "\\"]


@pytest.mark.parametrize("to", ["numpy", "c", "onnx"])
def test_names_of_observations_are_data_in_every_format(to, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = hr.Dict({key: hr.Box(-1, 1, (number,)) for number, key in enumerate(KEYS, 1)})
    exporter.export(hr.ActorCritic(space, hr.Discrete(2), hidden=(8,)), to)  # compares the file's results
    assert not (tmp_path / "RAN").exists()
