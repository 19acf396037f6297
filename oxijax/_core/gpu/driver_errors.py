"""GPUs as the CUDA driver describes them, and what to do about its errors."""

import dataclasses
import re
from collections.abc import Sequence

__all__ = ["ADVICE", "LOWEST", "Device", "DriverError", "cannot_open", "load_advice", "too_old"]

# The CUDA version whose driver compiles PTX 8.1, which the gradient to the input needs on sm_90 for
# its vector red; cuLibraryLoadData came with 12.0. Source: PTX ISA, "Release Notes".
LOWEST = (12, 1)
LOWEST_DRIVER = 530


class DriverError(RuntimeError):
    """The CUDA driver is missing or refuses a call; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class Device:
    """A GPU that this process sees.

    Attributes:
      ordinal: its number among the visible GPUs, as the driver counts them.
      name: as the driver calls it.
      sm: the SM version, for example 90 for compute capability 9.0.
      memory: bytes of global memory.
      shared_per_block: bytes of shared memory that one block can have (dynamic, opted in).
      shared_per_sm: bytes of shared memory that all blocks of an SM can have.
      reserved_shared: bytes of it that the driver takes for itself in each block.
      sms: how many SMs it has.
      clock_khz: the highest clock of the SMs, in kHz.
      memory_clock_khz: in kHz; 0 where the driver does not know it.
      bus_width: the width of the memory's bus, in bits.
    """

    ordinal: int
    name: str
    sm: int
    memory: int
    shared_per_block: int
    shared_per_sm: int
    reserved_shared: int
    sms: int
    clock_khz: int
    memory_clock_khz: int
    bus_width: int

    def __str__(self) -> str:
        return f"GPU {self.ordinal}, {self.name} of sm_{self.sm}"


def cannot_open(error: RuntimeError) -> DriverError:
    """What it means that `cuda.bindings` raises at its first call, which opens libcuda."""
    # The bindings find all functions through this one, which came with CUDA 12.0.
    if "cuGetProcAddress_v2" in str(error):
        return too_old("11")
    return DriverError(
        f"there is no NVIDIA driver: libcuda cannot be opened ({error}). Install the driver, with "
        "which nvidia-smi lists the GPUs; a container has to be started with access to them, for "
        "example docker run --gpus all"
    )


def too_old(version: str) -> DriverError:
    return DriverError(
        f"the NVIDIA driver supports CUDA up to {version}, and oxijax needs CUDA "
        "{}.{}, which drivers from {} on support: update the driver".format(*LOWEST, LOWEST_DRIVER)
    )


def load_advice(
    text: str, gpu: Device, devices: Sequence[Device], cuda: tuple[int, int]
) -> dict[str, str]:
    """What to do about a CUresult of loading a text into one of the devices."""
    version = re.search(r"^\s*\.version\s+([\d.]+)", text, re.M)
    target = re.search(r"^\s*\.target\s+(sm_(\d+)\w*)", text, re.M)
    gib = gpu.memory / 2**30
    no_binary = (
        f"PTX for {target[1] if target else '?'} does not run on {gpu}: write it for this GPU"
    )
    older = [other for other in devices if target and other.sm < int(target[2])]
    if target and older and gpu not in older:
        no_binary = (
            f"PTX for {target[1]}, which {gpu} asks for, was compiled for {older[0]} too: set "
            "CUDA_MODULE_LOADING=LAZY before CUDA starts, so that each GPU gets its own kernels"
        )
    return {
        **ADVICE,
        "CUDA_ERROR_INVALID_PTX": "The compiler of the driver rejects the PTX",
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": (
            f"The PTX is of version {version[1] if version else '?'}, which the driver, of CUDA "
            f"{cuda[0]}.{cuda[1]}, does not know: update the driver"
        ),
        "CUDA_ERROR_NO_BINARY_FOR_GPU": no_binary,
        "CUDA_ERROR_OUT_OF_MEMORY": (
            f"The {gib:.0f} GiB of {gpu} have no room for the kernel: leave some to it by a lower "
            "XLA_PYTHON_CLIENT_MEM_FRACTION, and see in nvidia-smi who else uses the GPU"
        ),
    }


ADVICE = {
    "CUDA_ERROR_NO_DEVICE": (
        "See whether nvidia-smi lists a GPU, and that CUDA_VISIBLE_DEVICES is unset or names one"
    ),
    "CUDA_ERROR_STUB_LIBRARY": (
        "The libcuda.so.1 that was found is the CUDA toolkit's stub: take the folder stubs off "
        "LD_LIBRARY_PATH"
    ),
    "CUDA_ERROR_DEVICE_UNAVAILABLE": (
        "See in nvidia-smi whether another process has the GPU for itself"
    ),
    "CUDA_ERROR_NOT_INITIALIZED": (
        "In a process that was forked from one that used CUDA: start it by spawn instead of fork"
    ),
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": (
        "libcuda and the kernel module are of different versions: reboot"
    ),
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": (
        "This GPU takes no forward compatibility: take cuda-compat off LD_LIBRARY_PATH, or update "
        "the driver"
    ),
    "CUDA_ERROR_JIT_COMPILER_NOT_FOUND": (
        "The driver lacks its PTX compiler, libnvidia-ptxjitcompiler: install the whole driver; a "
        "container needs compute among NVIDIA_DRIVER_CAPABILITIES"
    ),
    "CUDA_ERROR_JIT_COMPILATION_DISABLED": "Unset CUDA_DISABLE_PTX_JIT and CUDA_DISABLE_JIT",
    "CUDA_ERROR_ILLEGAL_ADDRESS": (
        "A kernel that ran before has used a wrong address, and the process cannot use the GPU "
        "any more: start it again"
    ),
    "CUDA_ERROR_OUT_OF_MEMORY": (
        "The GPU's memory is full: lower XLA_PYTHON_CLIENT_MEM_FRACTION, and see in nvidia-smi who "
        "else uses the GPU"
    ),
}
