"""device="auto" goes by how many weights learn, and by what was measured."""

from __future__ import annotations

import json

import pytest
import torch

from headrace.parallel import placement
from headrace.parallel.placement import ASSUMED_CROSSOVER, Placement, hidden_weights

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def with_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    monkeypatch.setattr(placement, "measured_file", lambda: tmp_path / "cpu_or_gpu.json")
    return tmp_path / "cpu_or_gpu.json"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_auto_is_the_cpu():
    assert Placement.on("auto", 10**9) == Placement(CPU, CPU, CPU)


def test_an_unmeasured_gpu_says_so(with_gpu, capsys):
    assert Placement.on("auto", ASSUMED_CROSSOVER - 1).learn == CPU
    assert capsys.readouterr().err == ""
    assert Placement.on("auto", ASSUMED_CROSSOVER).learn == CUDA
    assert "not measured on this machine" in capsys.readouterr().err


def test_what_was_measured_on_the_machine_decides(with_gpu, capsys, monkeypatch):
    with_gpu.write_text(json.dumps({"Some GPU": 3000}))
    assert Placement.on("auto", 2999).learn == CPU
    assert Placement.on("auto", 3000).learn == CUDA
    assert "faster there from 3,000 on" in capsys.readouterr().err
    with_gpu.unlink()
    monkeypatch.setitem(placement.CROSSOVER, "Some GPU", 7000)
    assert [Placement.on("auto", weights).learn for weights in (6999, 7000)] == [CPU, CUDA]


def test_a_named_device_is_taken(with_gpu):
    assert Placement.on("cpu", 10**9).learn == CPU


def test_hidden_weights_count_both_networks():
    assert hidden_weights((64, 64)) == 2 * 64 * 64
    assert hidden_weights((128,)) == 0
    assert hidden_weights((10, 20, 30), networks=1) == 800
