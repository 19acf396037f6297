"""Builds the virtual GPU's library: the driver, and stand-ins for what else XLA opens."""

from __future__ import annotations

import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable

__all__ = [
    "PLAIN",
    "SOURCES",
    "build",
    "compile_objects",
    "compiler",
    "run",
    "sanitizer_runtime",
    "stub_source",
]

HERE = pathlib.Path(__file__).parent
SOURCES = HERE / "driver"
WARNINGS = ("-std=gnu11", "-Wall", "-Wextra", "-Werror")

PLAIN = ("-O2", "-g")  # flags of the compiler

# One library plays all of these: a library that is opened again under another name is the same.
LIBRARY = "libcuda.so.1"
OTHER_NAMES = (
    "libcudart.so.12",
    "libcudart.so.13",
    "libcublas.so.12",
    "libcublas.so.13",
    "libcublasLt.so.12",
    "libcublasLt.so.13",
    "libcudnn.so.9",
    "libnccl.so.2",
    "libnvidia-ml.so.1",
)


# Patterns of functions' names, and what a stub of such a function returns.
_STUBS = {
    r"cu[A-Z][a-z]\w+": 801,  # CUDA_ERROR_NOT_SUPPORTED
    r"cuda[A-Z]\w+": 801,  # cudaErrorNotSupported
    r"cudnn[A-Z]\w+": 3000,  # CUDNN_STATUS_NOT_SUPPORTED
    r"cublas[A-Z]\w+": 15,  # CUBLAS_STATUS_NOT_SUPPORTED
    r"nccl[A-Z]\w+": 3,  # ncclInternalError
    r"nvml[A-Z]\w+": 3,  # NVML_ERROR_NOT_SUPPORTED
}
_STRINGS = re.compile(rb"\0((?:cu|nvml|nccl)\w{3,80})(?=\0)")
_NO_FUNCTIONS = re.compile(r"cuda(Error|Success)\w*|\w+_t|cu\w+_st")


def build(
    cache: pathlib.Path,
    header: pathlib.Path,
    libdevice: pathlib.Path,
    plugins: Iterable[pathlib.Path],
    flags: tuple[str, ...] = PLAIN,
) -> pathlib.Path:
    """Compiles the library, unless the cache has it.

    Args:
      cache: a folder for what has been built.
      header: cuda.h.
      libdevice: NVIDIA's functions for device code, libdevice.10.bc.
      plugins: the shared libraries that will use it: for whatever functions their strings name and
        it has not, it gets stubs.
      flags: the compiler's flags.

    Returns:
      A folder with `lib`, for LD_LIBRARY_PATH, and `toolkit`, for CUDA_ROOT.

    Raises:
      RuntimeError: the compiler is missing, or refuses.
    """
    plugins = sorted(plugins)
    folder = cache / f"library-{_key(header, plugins, flags)}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        made = pathlib.Path(scratch) / "made"
        _compile(made / "lib", pathlib.Path(scratch), header, plugins, flags)
        _make_toolkit(made / "toolkit", libdevice)
        try:
            made.rename(folder)
        except OSError:  # another process has built the same meanwhile
            if not folder.is_dir():
                raise
    return folder


def sanitizer_runtime(sanitizer: str) -> str:
    """The libraries that have to be loaded first where a sanitizer watches a library.

    Args:
      sanitizer: "address" or "thread".

    Returns:
      Their paths, for LD_PRELOAD.
    """
    runtime = {"address": "libasan.so", "thread": "libtsan.so"}[sanitizer]
    # The sanitizer looks for C++'s exceptions when it starts.
    names = (runtime, "libstdc++.so.6")
    return ":".join(run([compiler(), f"-print-file-name={name}"]).strip() for name in names)


def compiler() -> str:
    """The C compiler: `CC`, or gcc.

    Raises:
      RuntimeError: there is none.
    """
    found = os.environ.get("CC") or shutil.which("gcc")
    if not found:
        raise RuntimeError("gcc is needed: apt install gcc libc6-dev")
    return found


def stub_source(header: pathlib.Path, plugins: Iterable[pathlib.Path]) -> str:
    """The C source of the stubs, and of the tables that symbols.h declares."""
    text = header.read_text()
    names = set(re.findall(r"\bcu[A-Z]\w+(?=\s*\()", text))
    names |= {name for _, name in re.findall(r"#define\s+(cu[A-Z]\w+)\s+(cu[A-Z]\w+)", text)}
    for plugin in plugins:
        names |= {x.decode() for x in _STRINGS.findall(plugin.read_bytes())}
    lines = [
        "/* Generated: weak, so that a real definition takes the place of a stub. */",
        '#include "symbols.h"',
        '#define WEAK __attribute__((weak, visibility("default")))',
        "#define STUB(name, status) WEAK int name(void); int name(void) { static char said; \\",
        "  return virtual_gpu_missing(#name, status, &said); }",
    ]
    functions = {
        pattern: [
            name
            for name in sorted(names)
            if re.fullmatch(pattern, name) and not _NO_FUNCTIONS.fullmatch(name)
        ]
        for pattern in _STUBS
    }
    for pattern, status in _STUBS.items():
        lines += [f"STUB({name}, {status})" for name in functions[pattern]]
    lines.append("const Symbol symbols[] = {")
    lines += [f'{{"{name}", (void *){name}}},' for name in next(iter(functions.values()))]
    lines += ["{0, 0}};", "const ErrorName error_names[] = {"]
    errors = re.findall(r"\b(CUDA_(?:SUCCESS|ERROR_\w+))\s*=\s*(\d+)", text)
    lines += [f'{{{code}, "{name}"}},' for name, code in errors]
    return "\n".join([*lines, "{0, 0}};", ""])


def _key(header: pathlib.Path, plugins: list[pathlib.Path], flags: tuple[str, ...]) -> str:
    """Differs where what is built would."""
    digest = hashlib.sha256(repr((flags, compiler())).encode())
    for path in sorted([*SOURCES.iterdir(), *(HERE / "toolkit").iterdir(), HERE / "build.py"]):
        digest.update(path.name.encode() + path.read_bytes())
    digest.update(header.read_bytes())
    for plugin in plugins:  # large: their names and sizes tell their versions apart
        digest.update(f"{plugin.name} {plugin.stat().st_size}".encode())
    return digest.hexdigest()[:16]


def compile_objects(
    sources: Iterable[pathlib.Path],
    folder: pathlib.Path,
    header: pathlib.Path,
    plugins: Iterable[pathlib.Path],
    flags: tuple[str, ...],
) -> list[str]:
    """Compiles C files, and with them the stubs.

    Returns:
      The object files, in `folder`.

    Raises:
      RuntimeError: the compiler is missing, or refuses.
    """
    stubs = folder / "stubs.c"
    stubs.write_text(stub_source(header, plugins))
    objects = []
    for source in [*sources, stubs]:
        objects.append(str(folder / f"{source.stem}.o"))
        includes = [f"-I{SOURCES}", "-isystem", str(header.parent)]
        options = [*WARNINGS, *flags, "-fPIC", "-fvisibility=hidden", *includes]
        run([compiler(), *options, "-c", str(source), "-o", objects[-1]])
    return objects


def _compile(
    folder: pathlib.Path,
    scratch: pathlib.Path,
    header: pathlib.Path,
    plugins: list[pathlib.Path],
    flags: tuple[str, ...],
) -> None:
    folder.mkdir(parents=True)
    objects = compile_objects(sorted(SOURCES.glob("*.c")), scratch, header, plugins, flags)
    link = ["-shared", f"-Wl,-soname,{LIBRARY}", "-ldl", "-lpthread"]
    run([compiler(), *flags, *objects, *link, "-o", str(folder / LIBRARY)])
    for name in OTHER_NAMES:
        (folder / name).symlink_to(LIBRARY)


def _make_toolkit(folder: pathlib.Path, libdevice: pathlib.Path) -> None:
    """What XLA looks for in a CUDA toolkit: the assembler, and the functions for device code."""
    (folder / "bin").mkdir(parents=True)
    shutil.copy(HERE / "toolkit" / "ptxas", folder / "bin" / "ptxas")
    (folder / "nvvm" / "libdevice").mkdir(parents=True)
    (folder / "nvvm" / "libdevice" / libdevice.name).symlink_to(libdevice)


def run(command: list[str]) -> str:
    """What a command prints.

    Raises:
      RuntimeError: it fails; the message has all that it says.
    """
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{finished.stdout}{finished.stderr}")
    return finished.stdout
