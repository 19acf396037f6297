"""Runs a command on the virtual GPU.

Everything that it needs is made at the first run and kept in build/virtual_gpu, or in the folder
that VIRTUAL_GPU_CACHE names: an environment with the project and JAX's CUDA plugin, and the library
that plays the driver.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence

from support.sanitizers import ADDRESS, THREAD
from virtual_gpu import build, environment

__all__ = ["GPUS", "main", "parse", "variables"]

ROOT = pathlib.Path(__file__).parents[2]
GPUS = ("h100", "a100", "rtx4090", "l4", "b200")

_FLAGS = {None: build.PLAIN, "address": ADDRESS.flags, "thread": THREAD.flags}

_XLA_FLAGS = (
    "--xla_gpu_autotune_level=0",  # there are no times to choose by
    # Matrix products by Triton: cuBLAS has no PTX.
    "--xla_gpu_cublas_fallback=false",
    "--xla_gpu_triton_gemm_any=true",
    # Its kernels wait for those of other devices, and those would have to run at the same time.
    "--xla_gpu_unsupported_use_all_reduce_one_shot_kernel=false",
    # Branches and loops are the host's: conditional nodes of graphs are not implemented.
    "--xla_gpu_enable_command_buffer=-CONDITIONAL,-WHILE",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Becomes the command; does not return."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    cache = pathlib.Path(os.environ.get("VIRTUAL_GPU_CACHE") or ROOT / "build" / "virtual_gpu")
    if options.no_install:
        venv = environment.current()
        if not any(f"cuda{options.cuda}" in str(plugin) for plugin in venv.plugins):
            sys.exit(f"{sys.prefix} has no plugin of JAX for CUDA {options.cuda}")
    else:
        venv = environment.prepare(cache.absolute(), ROOT, options.cuda)
    flags = _FLAGS[options.sanitize]
    library = build.build(cache.absolute(), venv.header, venv.libdevice, venv.plugins, flags)
    settings = variables(options, library, venv, os.environ)
    if options.sanitize:
        settings |= _sanitizer_variables(options.sanitize)
    try:
        os.execvpe(options.command[0], options.command, settings)
    except FileNotFoundError:
        sys.exit(f"there is no command {options.command[0]}")


def variables(
    options: argparse.Namespace,
    library: pathlib.Path,
    venv: environment.Environment,
    inherited: Mapping[str, str],
) -> dict[str, str]:
    """The environment variables of what runs on the virtual GPU.

    Args:
      options: the options of the command line.
      library: the folder that `build.build` has made.
      venv: the environment whose Python runs.
      inherited: the present variables; JAX's and XLA's own settings among them stay.
    """

    def before(name: str, value: str, separator: str) -> str:
        return separator.join(filter(None, (value, inherited.get(name))))

    return {
        # Each buffer is an allocation of its own and of its own size: what is one byte too far is
        # outside.
        "XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "JAX_PLATFORMS": "cuda,cpu",
        **inherited,
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        "CUDA_ROOT": str(library / "toolkit"),  # where JAX has XLA look for an assembler
        "XLA_FLAGS": before("XLA_FLAGS", " ".join(_XLA_FLAGS), " "),
        "LD_LIBRARY_PATH": before("LD_LIBRARY_PATH", str(library / "lib"), ":"),
        "PATH": before("PATH", str(venv.python.parent), ":"),
        "PYTHONPATH": before("PYTHONPATH", str(pathlib.Path(__file__).parent / "python"), ":"),
        "VIRTUAL_GPU_LIBRARIES": str(library / "lib"),
        "VIRTUAL_GPU_MODEL": options.gpu,
        "VIRTUAL_GPU_DEVICES": str(options.devices),
        "VIRTUAL_GPU_MEMORY_MB": str(options.memory),
        "VIRTUAL_GPU_ASYNC": str(options.seed),
        "VIRTUAL_GPU_CUDA": f"{options.cuda}090" if options.cuda == 12 else f"{options.cuda}000",
        "VIRTUAL_GPU_STRICT": "1" if options.strict else "",
        "VIRTUAL_GPU_PTXAS": str(venv.ptxas) if options.strict else "",
        "VIRTUAL_GPU_ASSEMBLED": str(library.parent / "assembled"),
    }


def _sanitizer_variables(sanitizer: str) -> dict[str, str]:
    return {
        "LD_PRELOAD": build.sanitizer_runtime(sanitizer),
        "VIRTUAL_GPU_SANITIZE": sanitizer,
        # What Python and XLA keep to the end, or do without its knowledge, is not of the driver.
        "ASAN_OPTIONS": "detect_leaks=0",
        "TSAN_OPTIONS": "ignore_noninstrumented_modules=1",
    }


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="tests/virtual_gpu/run",
        description="Runs a command on a virtual NVIDIA GPU, with JAX's CUDA plugin.",
    )
    parser.add_argument("--gpu", choices=GPUS, default="h100", help="the model; %(default)s")
    parser.add_argument("--devices", type=int, default=1, metavar="N", help="how many; %(default)s")
    parser.add_argument(
        "--memory", type=int, default=2048, metavar="MB", help="of each device; %(default)s"
    )
    parser.add_argument(
        "--async",
        dest="seed",
        type=int,
        default=0,
        metavar="SEED",
        help="pause before operations of streams, at random",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="refuse PTX that ptxas refuses, and uses of memory that nothing has written",
    )
    parser.add_argument(
        "--cuda", type=int, choices=(12, 13), default=13, help="version of the plugin; %(default)s"
    )
    parser.add_argument(
        "--no-install",
        action="store_true",
        help="run in the environment of this Python, as it is",
    )
    parser.add_argument(
        "--sanitize", choices=("address", "thread"), help="watch the driver, in a Python program"
    )
    parser.add_argument("command", nargs="+", help="after --: what to run")
    options = parser.parse_args(arguments)
    if not 1 <= options.devices <= 8:
        parser.error(f"--devices must be from 1 to 8, got {options.devices}")
    return options
