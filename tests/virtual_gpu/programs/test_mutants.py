"""Faults of the launch path, each of which has to be noticed on the virtual GPU.

A mutant is a copy of oxijax in which one passage is changed, and its handler compiled again. What
runs on it is `launch_path.py`, in a process of its own: two devices, streams that pause, strict
memory, and memory that is freed is overwritten.
"""

import dataclasses
import os
import shutil
import subprocess
from pathlib import Path

import jaxlib
import pytest
from support.paths import ROOT
from support.processes import python

from oxijax._core.launch import _seal

pytestmark = pytest.mark.gpu

PROGRAM = Path(__file__).with_name("launch_path.py")
HANDLER = "_core/launch/handler.c"
RESOLVE = "_core/launch/_resolve.py"
DRIVER = "_core/gpu/driver.py"


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A change of one file of oxijax.

    Attributes:
      file: where.
      passages: what stands there, once each, and what it becomes.
    """

    file: str
    passages: dict[str, str]


LAUNCH = "launch->dynamic_shared, stream, parameters"
COPY = "(uint64_t)to->data, (uint64_t)from->data, bytes, stream"
ARGUMENTS = "for (uint64_t i = 0; i < launch->argument_count; ++i) {"
REPORT = "return status ? report_failure(frame, launch, status) : NULL;"
DIMENSIONS = "if (rank && memcmp(&entry->buffers[at + 2], buffer->dims, rank * sizeof(int64_t)))"
EACH_DIMENSION = "for (int64_t d = 0; d < buffer->rank; ++d) hash = mix("
IDENTITY = ".device = device,"
GRID = "launch->grid[0], launch->grid[1], launch->grid[2],"
BLOCK = "launch->block[0], launch->block[1], launch->block[2],"
FETCH = 'self._load_call("cuKernelGetFunction", text, gpu, library.kernel)'
CONTEXT = "with self._primary_context(self._handles[gpu.ordinal]):"
LIMIT = "self._set(limit, dynamic_shared, kernel, gpu)"
PREFERENCE = "self._set(preference, kernel.carve_out, kernel, gpu)"
SHARED = "if kernel.static_shared + dynamic_shared <= Target.static_shared_per_block:"

MUTANTS = {
    # Streams and CUDA graphs.
    "launch_on_the_null_stream": Mutant(HANDLER, {LAUNCH: LAUNCH.replace("stream", "NULL")}),
    "copy_on_the_null_stream": Mutant(HANDLER, {COPY: COPY.replace("stream", "NULL")}),
    "copy_that_a_capture_forbids": Mutant(DRIVER, {'b"cuMemcpyDtoDAsync"': 'b"cuMemcpyDtoD"'}),
    # Arguments.
    "no_last_argument": Mutant(
        HANDLER,
        {
            "  void *parameters[MAX_ARGUMENTS];": "  void *parameters[MAX_ARGUMENTS] = {0};",
            ARGUMENTS: ARGUMENTS.replace("i <", "i + 1 <"),
        },
    ),
    "arguments_in_another_order": Mutant(
        RESOLVE, {"buffer = argument.buffer\n": "buffer = len(call.shapes) - 1 - argument.buffer\n"}
    ),
    "scalars_in_another_byte_order": Mutant(RESOLVE, {'tobytes(), "little"': 'tobytes(), "big"'}),
    "a_buffer_for_its_address": Mutant(
        HANDLER,
        {"(void *)&buffer_of(frame, argument->buffer)": "buffer_of(frame, argument->buffer)"},
    ),
    # Results that hold an operand's values before the launch.
    "no_copy": Mutant(HANDLER, {"to->data || !bytes) continue;": "to->data || bytes) continue;"}),
    "copy_of_half": Mutant(HANDLER, {"bytes = size_of(to);": "bytes = size_of(to) / 2;"}),
    "copy_the_other_way": Mutant(
        HANDLER, {COPY: "(uint64_t)from->data, (uint64_t)to->data, bytes, stream"}
    ),
    "copy_after_the_launch": Mutant(
        HANDLER,
        {f"  {REPORT}\n}}": f"  copy_operands(frame, launch, stream);\n  {REPORT}\n}}"},
    ),
    "no_aliases": Mutant(RESOLVE, {"alias_count = len(call.aliases)": "alias_count = 0"}),
    "copy_into_another_buffer": Mutant(
        RESOLVE, {"operand: len(operands) + result\n": "operand: result\n"}
    ),
    # Which launch belongs to a call.
    "of_any_size": Mutant(
        HANDLER, {DIMENSIONS: "if (0)", EACH_DIMENSION: EACH_DIMENSION.replace("hash =", "(void)")}
    ),
    "of_any_spec": Mutant(
        HANDLER,
        {
            "known->key != identity->key": "0",
            "known->spec_size != identity->spec_size": "0",
            "memcmp(known->spec, identity->spec, identity->spec_size)": "0",
            "hash = mix((uint64_t)identity->key,": "hash = mix(0 * (uint64_t)identity->key,",
        },
    ),
    "of_the_first_device": Mutant(HANDLER, {IDENTITY: ".device = device < 0 ? device : 0,"}),
    "loaded_into_the_first_device": Mutant(
        RESOLVE, {"device = _driver.driver().current_device()": "device = 0"}
    ),
    # One text for all devices, and on each what is its own.
    "a_library_for_each_device": Mutant(DRIVER, {"digest()\n": "digest() + bytes([device])\n"}),
    "fetched_on_the_first_device_alone": Mutant(
        DRIVER, {FETCH: f"if gpu.ordinal == 0:\n            {FETCH}"}
    ),
    "fetched_in_the_context_of_the_first_device": Mutant(
        DRIVER, {CONTEXT: "with self._primary_context(self._handles[0]):"}
    ),
    "the_limit_of_the_first_device_is_that_of_both": Mutant(
        DRIVER, {"slot = library.slots[device]": "slot = library.slots[0]"}
    ),
    "freed_while_it_is_in_the_table": Mutant(
        HANDLER, {"launch = &entry->launch;\n    entry = NULL;": "launch = &entry->launch;"}
    ),
    # The launch itself.
    "grid_in_another_order": Mutant(
        HANDLER, {GRID: "launch->grid[2], launch->grid[1], launch->grid[0],"}
    ),
    "blocks_of_one_warp": Mutant(HANDLER, {BLOCK: BLOCK.replace("launch->block[0]", "32")}),
    "no_shared_memory": Mutant(HANDLER, {LAUNCH: f"0 * {LAUNCH}"}),
    "shared_memory_is_not_asked_for": Mutant(DRIVER, {SHARED: "if kernel:"}),
    "shared_memory_on_the_first_device": Mutant(
        DRIVER, {LIMIT: f"gpu = self.devices[0]\n        {LIMIT}"}
    ),
    "carve_out_on_the_first_device": Mutant(
        DRIVER, {PREFERENCE: f"gpu = self.devices[0]\n        {PREFERENCE}"}
    ),
    "all_of_the_shared_memory": Mutant(DRIVER, {PREFERENCE: ""}),
    "no_carve_out": Mutant(DRIVER, {"if not shared:\n": "if True:\n"}),
    "unloaded_at_once": Mutant(DRIVER, {"undo.pop_all()  #": "#"}),
    "failures_are_not_told": Mutant(HANDLER, {f"  {REPORT}\n}}": "  return NULL;\n}"}),
    "nothing_is_launched": Mutant(HANDLER, {"if (!launch->grid[0] ||": "if (launch->grid[0] ||"}),
}

# What `emulate_gpu` misses: it has no driver, no streams and one device.
MISSED = {
    "launch_on_the_null_stream",
    "copy_on_the_null_stream",
    "copy_that_a_capture_forbids",
    "no_last_argument",
    "scalars_in_another_byte_order",
    "copy_the_other_way",
    "of_the_first_device",
    "loaded_into_the_first_device",
    "a_library_for_each_device",
    "fetched_on_the_first_device_alone",
    "fetched_in_the_context_of_the_first_device",
    "the_limit_of_the_first_device_is_that_of_both",
    "shared_memory_is_not_asked_for",
    "shared_memory_on_the_first_device",
    "carve_out_on_the_first_device",
    "all_of_the_shared_memory",
    "no_carve_out",
    "unloaded_at_once",
    "failures_are_not_told",
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """A folder with oxijax and ptx; only what a mutant changes is not shared with the others."""
    folder = tmp_path_factory.mktemp("mutants")
    for package in ("oxijax", "ptx"):
        shutil.copytree(
            ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    return folder


def run_on(folder: Path, *arguments: str, **settings: str) -> tuple[int, str]:
    """Runs the program with the packages of a folder: its status, and what it says."""
    status, said = python(
        "-B",
        str(PROGRAM),
        *arguments,
        PYTHONPATH=f"{folder}:{os.environ['PYTHONPATH']}",
        MALLOC_PERTURB_="165",
        **settings,
    )
    assert f"oxijax of {folder}" in said, said
    return status, said


def on_the_virtual_gpu(folder: Path) -> tuple[int, str]:
    return run_on(folder, VIRTUAL_GPU_DEVICES="2", VIRTUAL_GPU_ASYNC="3", VIRTUAL_GPU_STRICT="1")


def in_the_emulator(folder: Path) -> tuple[int, str]:
    return run_on(
        folder, "sm_90", JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=2"
    )


def compile_handler(folder: Path) -> None:
    launch = folder / "oxijax" / "_core" / "launch"
    include = Path(jaxlib.__file__).parent / "include"
    flags = ["-O2", "-w", "-shared", "-fPIC", "-pthread", f"-I{include}"]
    target = ["-o", str(launch / "libhandler.so"), str(launch / "handler.c")]
    subprocess.run(["gcc", *flags, *target], check=True)
    _seal.seal(launch / "libhandler.so", launch / "handler.c")


@pytest.fixture
def changed(copy, mutant):
    """The folder, with a mutant in it."""
    change = MUTANTS[mutant]
    path = copy / "oxijax" / change.file
    text = changed = path.read_text()
    for old, new in change.passages.items():
        assert changed.count(old) == 1, f"{old} stands {changed.count(old)} times in {change.file}"
        changed = changed.replace(old, new)
    path.write_text(changed)
    compile_handler(copy)
    yield copy
    path.write_text(text)


def test_nothing_is_changed(copy):
    compile_handler(copy)
    for status, said in (on_the_virtual_gpu(copy), in_the_emulator(copy)):
        assert (status, said.splitlines()[-1]) == (0, "done"), said


@pytest.mark.parametrize("mutant", MUTANTS)
def test_is_noticed(changed, mutant):
    status, said = on_the_virtual_gpu(changed)
    assert status, said


@pytest.mark.parametrize("mutant", MUTANTS)
def test_what_the_emulator_notices(changed, mutant):
    status, said = in_the_emulator(changed)
    assert (status == 0) == (mutant in MISSED), said
