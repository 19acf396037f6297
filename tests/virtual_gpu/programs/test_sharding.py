"""Every function on two GPUs, as XLA splits it for them."""

from pathlib import Path

import pytest
from support.processes import python

pytestmark = pytest.mark.gpu

PROGRAM = Path(__file__).with_name("sharding.py")


def test_two_gpus():
    status, said = python(
        str(PROGRAM), VIRTUAL_GPU_DEVICES="2", VIRTUAL_GPU_ASYNC="3", VIRTUAL_GPU_STRICT="1"
    )
    assert status == 0, said
    assert said.count("done ") == 12, said
