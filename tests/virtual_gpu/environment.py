"""Makes the environment that programs run in on the virtual GPU: the project, and JAX's plugin."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import pathlib
import subprocess
import sys

__all__ = ["Environment", "describe", "prepare"]


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
    return describe(folder)


def _jax_version() -> str | None:
    try:
        return importlib.metadata.version("jax")
    except importlib.metadata.PackageNotFoundError:
        return None


def _install(folder: pathlib.Path, root: pathlib.Path, version: str | None, cuda: int) -> None:
    python = folder / "bin" / "python"
    if not python.exists():
        _run([sys.executable, "-m", "venv", str(folder)])

    def pip(*what: str) -> None:
        _run([str(python), "-m", "pip", "install", "-q", *what])

    # The extra with "local" has the plugin, and none of NVIDIA's own libraries.
    pip("-e", f"{root}[test]", f"jax[cuda{cuda}-local]" + (f"=={version}" if version else ""))
    if cuda == 12:  # in place of those of CUDA 13 that the tests have
        pip("cuda-bindings>=12.9,<13")


def describe(folder: pathlib.Path) -> Environment:
    """What an environment has.

    Args:
      folder: it; its packages are those of the project's extra "test", and a plugin may be there.
    """
    (site,) = folder.glob("lib/python3.*/site-packages")
    plugins = [*site.glob("jax_plugins/xla_cuda*/*.so"), *site.glob("jax_cuda*_plugin/*.so")]
    return Environment(
        python=folder / "bin" / "python",
        header=site / "nvidia" / "cu13" / "include" / "cuda.h",
        libdevice=site / "nvidia" / "cu13" / "nvvm" / "libdevice" / "libdevice.10.bc",
        ptxas=site / "nvidia" / "cu13" / "bin" / "ptxas",
        plugins=tuple(sorted(plugins)),
    )


def _run(command: list[str]) -> str:
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{finished.stdout}{finished.stderr}")
    return finished.stdout
