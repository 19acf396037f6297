"""A model that trains has the CPU's losses, on one device and on two, with graphs and without."""

import os
from pathlib import Path

import pytest
from support.processes import python

pytestmark = pytest.mark.gpu

PROGRAM = Path(__file__).with_name("training.py")
NO_GRAPHS = "--xla_gpu_enable_command_buffer="


@pytest.mark.parametrize("graphs", ["graphs", "no_graphs"])
@pytest.mark.parametrize("devices", ["1", "2"])
def test_losses(tmp_path, devices, graphs):
    calls = tmp_path / "calls"
    status, said = python(
        str(PROGRAM),
        XLA_FLAGS=f"{os.environ['XLA_FLAGS']} {NO_GRAPHS if graphs == 'no_graphs' else ''}",
        VIRTUAL_GPU_DEVICES=devices,
        VIRTUAL_GPU_ASYNC="3",
        VIRTUAL_GPU_STRICT="1",
        VIRTUAL_GPU_LOG=str(calls),
    )
    assert status == 0, said
    assert f"done on {devices}" in said
    assert ("cuGraphLaunch" in calls.read_text()) == (graphs == "graphs")
