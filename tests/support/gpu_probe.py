"""The handler's launches on a GPU, noted by a function that stands before cuLaunchKernel."""

import contextlib
import ctypes
import dataclasses
from collections.abc import Iterator
from unittest import mock

from oxijax._core.gpu.driver import driver
from oxijax._core.launch._handler import LAUNCH_FUNCTION

__all__ = ["NotedLaunch", "noted_launches"]


@dataclasses.dataclass(frozen=True)
class NotedLaunch:
    """One call of cuLaunchKernel.

    Attributes:
      stream: the CUstream's address.
      capturing: whether the stream was being captured into a CUDA graph.
      status: the CUresult.
    """

    stream: int
    capturing: bool
    status: int


@contextlib.contextmanager
def noted_launches() -> Iterator[list[NotedLaunch]]:
    """The launches, in order, of kernels that are called for the first time within the context.

    A kernel that has been called before, with the same shapes, is in the handler's table together
    with the driver's own function, and is not noticed.
    """
    noted: list[NotedLaunch] = []
    real = LAUNCH_FUNCTION(driver().launch_pointer)
    is_capturing = ctypes.CDLL("libcuda.so.1").cuStreamIsCapturing
    is_capturing.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]

    @LAUNCH_FUNCTION
    def launch(function, *rest):
        stream, capture = rest[7], ctypes.c_int(-1)
        asked = is_capturing(stream, ctypes.byref(capture))
        status = real(function, *rest)
        noted.append(NotedLaunch(stream or 0, asked == 0 and capture.value == 1, status))
        return status

    _kept_alive.append(launch)  # the handler's table has its address until the process ends
    address = ctypes.cast(launch, ctypes.c_void_p).value
    with mock.patch.object(driver(), "launch_pointer", address):
        yield noted


_kept_alive: list = []
