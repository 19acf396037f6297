"""Makes the environment that programs run in on the virtual GPU: the project, and JAX's plugin."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import pathlib
import sys
import sysconfig

from virtual_gpu.build import run

__all__ = ["Environment", "current", "prepare"]


@dataclasses.dataclass(frozen=True)
class Environment:
    """An environment.

    Attributes:
      python: its interpreter.
      header: cuda.h.
      libdevice: libdevice.10.bc, NVIDIA's functions for device code.
      ptxas: NVIDIA's assembler.
      plugins: the shared libraries of JAX's CUDA plugin.
    """

    python: pathlib.Path
    header: pathlib.Path
    libdevice: pathlib.Path
    ptxas: pathlib.Path
    plugins: tuple[pathlib.Path, ...]


def prepare(cache: pathlib.Path, root: pathlib.Path, cuda: int) -> Environment:
    """The environment for the interpreter and the JAX that this runs with.

    Without a JAX it has the newest that the project allows.

    Args:
      cache: the folder that it is kept in.
      root: the project.
      cuda: the plugin's CUDA version, 12 or 13.

    Raises:
      RuntimeError: pip fails.
    """
    version = _jax_version()
    name = f"venv-py{sys.version_info.major}.{sys.version_info.minor}-jax{version or ''}-cuda{cuda}"
    folder = cache / name
    done = folder / "installed"
    wanted = hashlib.sha256((root / "pyproject.toml").read_bytes() + bytes(root)).hexdigest()
    if not done.exists() or done.read_text() != wanted:
        print(f"virtual GPU: installs into {folder}", file=sys.stderr, flush=True)
        _install(folder, root, version, cuda)
        done.write_text(wanted)
    (packages,) = folder.glob("lib/python3.*/site-packages")
    return _describe(folder / "bin" / "python", packages)


def current() -> Environment:
    """The environment of the Python that this runs with, as it is.

    Raises:
      RuntimeError: it has no cuda.h where NVIDIA's packages for CUDA 13 put it.
    """
    found = _describe(pathlib.Path(sys.executable), pathlib.Path(sysconfig.get_path("purelib")))
    if not found.header.is_file():
        raise RuntimeError(f"there is no {found.header}: pip install nvidia-cuda-runtime")
    return found


def _jax_version() -> str | None:
    try:
        return importlib.metadata.version("jax")
    except importlib.metadata.PackageNotFoundError:
        return None


def _install(folder: pathlib.Path, root: pathlib.Path, version: str | None, cuda: int) -> None:
    python = folder / "bin" / "python"
    if not python.exists():
        run([sys.executable, "-m", "venv", str(folder)])

    def pip(*what: str) -> None:
        run([str(python), "-m", "pip", "install", "-q", *what])

    # The extra with "local" has the plugin, and none of NVIDIA's own libraries.
    pip("-e", f"{root}[test]", f"jax[cuda{cuda}-local]" + (f"=={version}" if version else ""))
    if cuda == 12:  # in place of those of CUDA 13 that the tests have
        pip("cuda-bindings>=12.9,<13")


def _describe(python: pathlib.Path, packages: pathlib.Path) -> Environment:
    toolkit = packages / "nvidia" / "cu13"
    plugins = (
        *packages.glob("jax_plugins/xla_cuda*/*.so"),
        *packages.glob("jax_cuda*_plugin/*.so"),
    )
    return Environment(
        python=python,
        header=toolkit / "include" / "cuda.h",
        libdevice=toolkit / "nvvm" / "libdevice" / "libdevice.10.bc",
        ptxas=toolkit / "bin" / "ptxas",
        plugins=tuple(sorted(plugins)),
    )
