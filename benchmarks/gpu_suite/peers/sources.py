"""CUDA kernels whose sources a user has cloned: compiled with nvcc, called by pointers.

The folder that `OXIJAX_PEERS` names, or `.peers` at the top of this repository, has clones of
`REPOSITORIES`, or of some of them. Nothing of them is part of this project.
"""

import ctypes
import functools
import os
import pathlib
import shutil
import subprocess
import tempfile

__all__ = ["FILES", "REPOSITORIES", "compile_kernels", "folder", "ptx_texts"]

_HERE = pathlib.Path(__file__).parent
# By the names in `gpu_suite.peers.calls.PEERS`.
REPOSITORIES = {
    "Deformable DETR, CUDA": "https://github.com/fundamentalvision/Deformable-DETR",
    "DCNv3, CUDA": "https://github.com/OpenGVLab/InternImage",
    "DCNv4, CUDA": "https://github.com/OpenGVLab/DCNv4",
}
# What kernels.cu includes, by the macro that names it there.
FILES = {
    "DEFORMABLE_DETR": "Deformable-DETR/models/ops/src/cuda/ms_deform_im2col_cuda.cuh",
    "DCNV3": "InternImage/classification/ops_dcnv3/src/cuda/dcnv3_im2col_cuda.cuh",
    "DCNV4_FORWARD": "DCNv4/DCNv4_op/src/cuda/dcnv4_im2col_cuda.cuh",
    "DCNV4_BACKWARD": "DCNv4/DCNv4_op/src/cuda/dcnv4_col2im_cuda.cuh",
}
# Of PyTorch: the kernels include them, and use nothing of them.
_EMPTY = ("ATen/ATen.h", "ATen/OpMathType.h", "ATen/cuda/CUDAContext.h", "THC/THCAtomics.cuh")


def folder() -> pathlib.Path:
    """The folder of the clones, which need not exist."""
    return pathlib.Path(os.environ.get("OXIJAX_PEERS", _HERE.parents[2] / ".peers"))


@functools.cache
def compile_kernels(architecture: str) -> ctypes.CDLL:
    """The functions of kernels.cu, for a GPU such as "sm_90".

    Raises:
      FileNotFoundError: No source is there, or no nvcc.
      RuntimeError: nvcc has failed.
    """
    with tempfile.TemporaryDirectory() as place:
        path = pathlib.Path(place) / "libpeers.so"
        _nvcc(f"-arch={architecture}", "-shared", "-Xcompiler", "-fPIC", "-o", str(path))
        return ctypes.CDLL(str(path))


def ptx_texts(architecture: str) -> str:
    """The PTX text of all kernels; raises as `compile_kernels`."""
    with tempfile.TemporaryDirectory() as place:
        path = pathlib.Path(place) / "peers.ptx"
        _nvcc(f"-arch={architecture}", "-ptx", "-o", str(path))
        return path.read_text()


def _nvcc(*options: str) -> None:
    tool = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not pathlib.Path(tool).exists():
        raise FileNotFoundError("there is no nvcc on PATH, and none in /usr/local/cuda/bin")
    found = {name: folder() / file for name, file in FILES.items() if (folder() / file).is_file()}
    if not found:
        raise FileNotFoundError(f"{folder()} has none of {', '.join(FILES.values())}")
    with tempfile.TemporaryDirectory() as place:
        for name in _EMPTY:
            path = pathlib.Path(place, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        defined = [f'-D{name}="{path.resolve()}"' for name, path in found.items()]
        command = [tool, "-O3", "-w", "-I", place, *defined, *options, str(_HERE / "kernels.cu")]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"nvcc has failed:\n{done.stderr[-2000:]}")
