"""Files of tuned plans: what is read, kept and left alone, by one process and several."""

import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
from support.processes import python
from support.tuned_calls import FILE, GPU, layer_call, product_call, text_of

import oxijax
from oxijax._core.calls import tuned_plans as plans_module
from oxijax._core.calls.kernel_call import KernelCall
from oxijax._core.calls.tuned_plans import TunedPlans, tuned_plans
from oxijax._core.calls.variations import variations
from ptx import registry
from ptx.kernels import deform_conv
from ptx.registry import register

pytestmark = pytest.mark.usefixtures("tuning_folder")


def test_a_file_is_read_once_and_for_its_gpu(tuning_folder):
    (tuning_folder / FILE).write_text(text_of(layer_call(), layer_call(gpu="Other")))
    assert len(oxijax.config.tuning) == 0, "nothing is read before a kernel is launched"
    assert tuned_plans.find(layer_call(gpu="Another")) is None
    assert tuned_plans.find(layer_call()) == variations(layer_call())[1]
    assert tuned_plans.find(layer_call(gpu="Other")) is None
    (tuning_folder / FILE).unlink()
    assert tuned_plans.find(layer_call()) == variations(layer_call())[1]


def test_files_go_before_what_is_shipped(tuning_folder, monkeypatch):
    shipped = tuning_folder / "shipped"
    shipped.mkdir()
    monkeypatch.setattr(plans_module, "_SHIPPED", shipped)
    (shipped / "h100.json").write_text(text_of(layer_call(), product_call()))
    (tuning_folder / FILE).write_text(text_of(layer_call(), choice=2))
    assert tuned_plans.find(layer_call()) == variations(layer_call())[2]
    assert tuned_plans.find(product_call()) == variations(product_call())[1]


def test_what_is_shipped_is_read():
    """With all that the package has: each is a plan that this version tries."""
    for file in plans_module._SHIPPED.glob("*.json"):
        TunedPlans().loads(file.read_text())


def test_what_a_process_has_goes_before_its_files(tuning_folder):
    (tuning_folder / FILE).write_text(text_of(layer_call(), product_call()))
    oxijax.config.tuning.loads(text_of(layer_call(), choice=2))
    assert tuned_plans.find(layer_call()) == variations(layer_call())[2]
    assert tuned_plans.find(product_call()) == variations(product_call())[1]


UNREADABLE = {
    "no JSON": (lambda file: file.write_text("{"), "text must be JSON"),
    "another format": (
        lambda file: file.write_text('{"format": 2, "oxijax": "0", "plans": []}'),
        "text must be of format 1, got 2",
    ),
    "no UTF-8": (lambda file: file.write_bytes(b"\xff"), "can't decode byte 0xff"),
    "a folder": (pathlib.Path.mkdir, "it is no regular file"),
    "a pipe": (os.mkfifo, "it is no regular file"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_cannot_be_read_is_a_warning(tuning_folder, name):
    """And it stays, with the plans that someone may still find in it."""
    make, message = UNREADABLE[name]
    make(tuning_folder / FILE)
    before = (tuning_folder / FILE).stat()
    with pytest.warns(RuntimeWarning, match=rf"not read: .*{FILE}: .*{message}.*\nMend or delete"):
        assert tuned_plans.find(layer_call()) is None
    assert tuned_plans.find(layer_call()) is None
    with pytest.warns(RuntimeWarning, match=rf"in this process alone: .*{FILE}: .*{message}"):
        tuned_plans.keep({layer_call(): variations(layer_call())[1]})
    assert tuned_plans.find(layer_call()) == variations(layer_call())[1]
    assert os.listdir(tuning_folder) == [FILE]
    after = (tuning_folder / FILE).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def entry_of(call: KernelCall, **fields) -> dict:
    """The entry of a file, fields of which are others, or are there besides."""
    (entry,) = json.loads(text_of(call))["plans"]
    return entry | fields


def text_with(*entries) -> str:
    return json.dumps({**json.loads(text_of()), "plans": entries})


STRANGERS = {
    "another package's": (entry_of(layer_call(), kernel="scale"), "no kernel 'scale' is reg"),
    "a later version's": (entry_of(layer_call(), colour="red"), "an object with gpu, target"),
    "a nested one": ([[{"a": [None, {}]}], 1.5], "an object with gpu, target"),
    "of another target": (entry_of(layer_call(), target="sm_700"), "target must be one of sm_75"),
    "of a plan that is none": (
        entry_of(layer_call(96), plan={"m": 1}),
        "a plan of kernel deform",
    ),
    "of no shapes": (entry_of(layer_call(), shapes=[]), "kernel deform_conv_forward has the op"),
}


def test_entries_are_judged_one_by_one(tuning_folder):
    """Of a file those are used that mean something here, and `keep` leaves the others in it."""
    strangers = [entry for entry, _ in STRANGERS.values()]
    known = entry_of(layer_call())
    (tuning_folder / FILE).write_text(text_with(*strangers[:3], known, *strangers[3:]))
    with pytest.warns(RuntimeWarning, match="6 of 7 tuned plans are not used") as caught:
        assert tuned_plans.find(layer_call()) == variations(layer_call())[1]
    (warning,) = caught
    told = str(warning.message).split("\n")
    assert told[0].endswith(f"and stay in {tuning_folder / FILE}:")
    assert told[1].startswith("plan 1: no kernel 'scale' is registered; import the module")
    assert [line[:7] for line in told[2:]] == ["plan 2:", "plan 3:", "..."]

    for _ in range(2):
        tuned_plans.keep({product_call(): variations(product_call())[1]})
        left = json.loads((tuning_folder / FILE).read_text())["plans"]
        assert len(left) == 8
        for entry in (*strangers, known, entry_of(product_call())):
            assert entry in left


@pytest.mark.parametrize("name", STRANGERS)
def test_why_an_entry_is_not_used(tuning_folder, name):
    entry, reason = STRANGERS[name]
    (tuning_folder / FILE).write_text(text_with(entry))
    with pytest.warns(RuntimeWarning, match=f"1 of 1 tuned plans .*\nplan 1: {reason}"):
        assert tuned_plans.find(layer_call()) is None


def test_a_call_that_is_tuned_again_has_one_entry(tuning_folder):
    """Whatever its plan was before."""
    (tuning_folder / FILE).write_text(text_with(entry_of(layer_call(), plan="the fastest")))
    tuned_plans.keep({layer_call(): variations(layer_call())[1]})
    assert (tuning_folder / FILE).read_text() == text_of(layer_call())


def test_warnings_that_are_errors_cost_no_plans(tuning_folder):
    entries = entry_of(layer_call(), kernel="scale"), entry_of(layer_call())
    (tuning_folder / FILE).write_text(text_with(*entries))
    with pytest.raises(RuntimeWarning, match="1 of 2"):  # as in all tests
        tuned_plans.find(layer_call())
    assert tuned_plans.find(layer_call()) == variations(layer_call())[1]


def test_kernels_that_are_imported_late(tuning_folder, monkeypatch):
    """A package's kernels have their plans, also where others were launched before its import."""
    monkeypatch.setattr("ptx.registry.KERNELS", dict(registry.KERNELS))
    call = dataclasses.replace(
        layer_call(), kernel=dataclasses.replace(deform_conv.FORWARD, name="late")
    )
    (tuning_folder / FILE).write_text(text_of(call, product_call()))
    with pytest.warns(RuntimeWarning, match="1 of 2 .*\nplan 2: no kernel 'late' is registered"):
        assert tuned_plans.find(product_call()) == variations(product_call())[1]
    register(call.kernel)
    assert tuned_plans.find(call) == variations(call)[1]
    oxijax.config.tuning.clear()
    assert tuned_plans.find(call) is None


def test_what_killed_writers_have_left_is_deleted_a_day_later(tuning_folder):
    now = time.time()
    names = {"tuning-Other-0.1.0.json1.new": 25, f"{FILE}2.new": 23, "mine.json3.new": 25}
    for name, hours in names.items():
        (tuning_folder / name).write_text("{")
        os.utime(tuning_folder / name, (now, now - hours * 60 * 60))
    tuned_plans.keep({layer_call(): variations(layer_call())[1]})
    assert sorted(os.listdir(tuning_folder)) == sorted([FILE, f"{FILE}2.new", "mine.json3.new"])


def test_files_add_up(tuning_folder):
    layer, product, other = layer_call(), product_call(), layer_call(gpu="Other")
    tuned_plans.keep({layer: variations(layer)[1], other: variations(other)[1]})
    oxijax.config.tuning.clear()  # as in a later process, which has read nothing
    tuned_plans.keep({product: variations(product)[1]})
    assert sorted(os.listdir(tuning_folder)) == [FILE, FILE.replace("Fake-H100-80GB", "Other")]
    assert (tuning_folder / FILE).read_text() == text_of(layer, product)
    assert oxijax.config.tuning.dumps() == text_of(product)


def test_a_file_that_cannot_be_written_is_a_warning(tuning_folder, monkeypatch):
    monkeypatch.setenv("OXIJAX_TUNING_DIR", str(tuning_folder / "file" / "folder"))
    (tuning_folder / "file").write_text("")
    call = layer_call()
    with pytest.warns(RuntimeWarning, match="kept in this process alone: .*Not a directory"):
        tuned_plans.keep({call: variations(call)[1]})
    assert tuned_plans._plans == {call: variations(call)[1]}


def test_directory(monkeypatch, tmp_path):
    assert oxijax.config.tuning.directory == tmp_path
    monkeypatch.delenv("OXIJAX_TUNING_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert oxijax.config.tuning.directory == pathlib.Path("/caches/oxijax")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert oxijax.config.tuning.directory == pathlib.Path("/home/me/.cache/oxijax")
    monkeypatch.setenv("XDG_CACHE_HOME", "~/caches")
    assert oxijax.config.tuning.directory == pathlib.Path("/home/me/caches/oxijax")
    monkeypatch.setenv("OXIJAX_TUNING_DIR", "~/plans")
    assert oxijax.config.tuning.directory == pathlib.Path("/home/me/plans")
    monkeypatch.setenv("OXIJAX_TUNING_DIR", "plans/~")
    assert oxijax.config.tuning.directory == pathlib.Path("plans/~")


# ---- several processes

CALL = f"""
import sys
import oxijax
from oxijax._core.calls.kernel_call import KernelCall
from oxijax._core.calls.tuned_plans import tuned_plans
from oxijax._core.calls.variations import variations
from ptx.isa.targets import TARGETS
from ptx.kernels.conv import FORWARD, ConvConfig

def call(outputs):
    config = ConvConfig(16, outputs)
    shapes = FORWARD.shapes(config, {{"n": 1, "h": 8, "w": 8, "p": 8, "q": 8}})
    return KernelCall({GPU!r}, TARGETS["sm_90"], FORWARD, config, tuple(shapes.values()))
"""

DUMP = f"""{CALL}
tuned_plans.keep({{call(16): variations(call(16))[1]}})
print(oxijax.config.tuning.dumps(), end="")
"""

LOADS = """
import sys
import oxijax
assert not any(name.split(".")[0] == "ptx" for name in sys.modules)
oxijax.config.tuning.loads(sys.argv[1])
print(oxijax.config.tuning.dumps(), end="")
"""


def test_a_fresh_process_loads_what_another_dumps(tuning_folder):
    """It has imported nothing but oxijax. Its folder is in the user's home."""
    settings = {"OXIJAX_TUNING_DIR": "~/plans", "HOME": str(tuning_folder)}
    status, text = python("-c", DUMP, **settings)
    assert status == 0, text
    assert (tuning_folder / "plans" / FILE).read_text() == text
    assert json.loads(text)["plans"][0]["kernel"] == "conv_forward"
    assert python("-c", LOADS, text, **settings) == (0, text)


WRITE = f"""{CALL}
plans = {{call(outputs): variations(call(outputs))[1] for outputs in map(int, sys.argv[1:])}}
print("ready", flush=True)
input()
for each in [*plans] * 20:
    tuned_plans.keep({{each: plans[each]}})
"""


def test_two_processes_that_write_at_once(tuning_folder):
    """Whoever reads the file finds entries, and what means nothing to both of them stays."""
    stranger = entry_of(layer_call(), kernel="scale")
    (tuning_folder / FILE).write_text(text_with(stranger))
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", WRITE, *outputs],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for outputs in (("16", "24"), ("32", "40"))
        ]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            assert writer.stdin is not None
            print(file=writer.stdin, flush=True)
        reads = 0
        while any(writer.poll() is None for writer in writers) or not reads:
            assert stranger in json.loads((tuning_folder / FILE).read_text())["plans"]
            reads += 1
    assert [writer.returncode for writer in writers] == [0, 0]
    assert os.listdir(tuning_folder) == [FILE]
    left = json.loads((tuning_folder / FILE).read_text())["plans"]
    assert 3 <= len(left) <= 5  # those of the last to write at least
