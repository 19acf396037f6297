"""The schedules that XLA makes for GPUs of the launches' times."""

import re
from pathlib import Path

import pytest
from support.processes import python

pytestmark = pytest.mark.gpu

PROGRAM = Path(__file__).with_name("scheduling.py")


def test_kernels_run_beside_all_reduces():
    status, said = python(
        str(PROGRAM),
        VIRTUAL_GPU_DEVICES="2",
        TF_CPP_MIN_LOG_LEVEL="0",
        TF_CPP_VMODULE="latency_hiding_scheduler=10",
    )
    assert status == 0, said[-5000:]
    assert len(re.findall(r"^done ", said, re.M)) == 6, said[-5000:]
    # XLA says in its log which times it has read.
    given = {time for line in re.findall(r"^said (.*)$", said, re.M) for time in line.split()}
    read = set(re.findall(r"Returning latency from custom call for \S+: (\d+) ns", said))
    assert given
    assert given == read
