"""The memory of test processes: compiled programs are forgotten, peaks are watched.

`tests/conftest.py` names this plugin, and does not import it: no proof depends on it, so that a
change here leaves proofs alone.
"""

import ctypes
import gc
import resource
import sys

import jax
import pytest

from ptx.definition import clear_texts
from ptx.emulator.program import load
from support.places import wants_gpu

C_LIBRARY = ctypes.CDLL(None)

# Resident bytes of a test process: with one for each core a laptop has to hold them all.
MEMORY_LIMIT = 1.5 * 2**30
FORGET_ABOVE = 1.0 * 2**30  # what is compiled is forgotten then, in the middle of a file too
FORGET_AFTER_FILE = 0.8 * 2**30  # below it another file's programs do not hurt
WORTH_FORGETTING = 0.1 * 2**30  # what came since the last time: to forget takes a while

# Of glibc's malloc.h. An array that is larger gets pages of its own, which go back when it is
# freed: left to itself glibc raises that size with use, up to 32 MiB, and keeps a heap full of
# holes. The threads of XLA have few heaps, which have fewer holes.
M_MMAP_THRESHOLD, OWN_PAGES_FROM = -3, 2**19  # bytes
M_ARENA_MAX, HEAPS = -8, 2

_resident_once_forgotten = [0]  # bytes, after the last time
_reported = [0]  # the peak of which a test has failed: later ones are not to blame
_peaks: list[int] = []  # of workers


def pytest_configure():
    """Has the C library give back what is freed."""
    if hasattr(C_LIBRARY, "mallopt"):
        assert C_LIBRARY.mallopt(M_MMAP_THRESHOLD, OWN_PAGES_FROM)
        assert C_LIBRARY.mallopt(M_ARENA_MAX, HEAPS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """Forgets what is compiled where it is much; watches memory."""
    result = yield
    file_ends = nextitem is None or nextitem.path != item.path
    enough = FORGET_AFTER_FILE if file_ends else FORGET_ABOVE
    if resident_memory() > max(enough, _resident_once_forgotten[0] + WORTH_FORGETTING):
        forget()
        _resident_once_forgotten[0] = resident_memory()
    if not wants_gpu(item.config) and (peak := peak_memory()) > MEMORY_LIMIT > _reported[0]:
        _reported[0] = peak
        pytest.fail(f"this process has taken {peak / 2**30:.2f} GiB, over {MEMORY_LIMIT / 2**30}")
    return result


def forget() -> None:
    """Frees programs that JAX has compiled, texts of kernels, and what is parsed of them."""
    jax.clear_caches()
    clear_texts()
    load.cache_clear()
    gc.collect()
    if hasattr(C_LIBRARY, "malloc_trim"):
        C_LIBRARY.malloc_trim(0)  # else it keeps what is free


def resident_memory() -> int:
    """The bytes that this process has resident; 0 where there is no telling."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def peak_memory() -> int:
    """The most bytes that this process has had resident."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["peak_memory"] = peak_memory()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    _peaks.append(getattr(node, "workeroutput", {}).get("peak_memory", 0))


def pytest_terminal_summary(terminalreporter):
    peaks = ", ".join(f"{peak / 2**30:.2f}" for peak in _peaks or [peak_memory()])
    terminalreporter.line(f"peak memory of each test process: {peaks} GiB")
