"""Section smoke: a test of each path of each family's kernels, in less than a minute."""

from gpu_suite.device_tests import few_tests, run_tests
from gpu_suite.recorder import Recorder

__all__ = ["run"]


def run(recorder: Recorder) -> None:
    run_tests(recorder, few_tests())
