"""`oxijax.tune` and `oxijax.config.tuning`: what is noted, kept and used. No GPU, and no time."""

import contextlib
import copy
import dataclasses
import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from support.processes import python

import oxijax
from oxijax._core.launch import _emulation
from oxijax._core.tuning import plans as plans_module
from oxijax._core.tuning import tune as tune_module
from oxijax._core.tuning.calls import KernelCall, noted_calls
from oxijax._core.tuning.plans import TunedPlans, tuned_plans
from oxijax._core.tuning.report import TimedPlan, Tuned, TunedCall
from oxijax._core.tuning.variations import variations
from oxijax.testing import emulate_gpu
from ptx.isa.dtypes import bf16, f32
from ptx.isa.targets import TARGETS
from ptx.kernels import conv, deform_conv
from ptx.kernels.gemm import GEMM, choose
from ptx.registry import kernels, register

GPU = "Fake H100 80GB"
FILE = f"tuning-Fake-H100-80GB-{oxijax.__version__}.json"


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """The folder of the files; nothing is kept before a test, nor after it."""
    monkeypatch.setenv("OXIJAX_TUNING_DIR", str(tmp_path))
    monkeypatch.setattr(tuned_plans, "_plans", {})
    monkeypatch.setattr(tuned_plans, "_read", {})
    yield tmp_path
    tuned_plans._plans.clear()
    oxijax.clear_caches()


def layer_call(outputs=32, gpu=GPU) -> KernelCall:
    """A call whose plan holds a class, as SamplePlan does."""
    config = deform_conv.DeformConvConfig(64, outputs, float_type=bf16)
    sizes = {"n": 1, "h": 8, "w": 8, "p": 8, "q": 8}
    shapes = tuple(deform_conv.FORWARD.shapes(config, sizes).values())
    return KernelCall(gpu, TARGETS["sm_90"], deform_conv.FORWARD, config, shapes)


def product_call(gpu=GPU) -> KernelCall:
    config = choose(300, 24, 32, float_type=f32, strategy="shallow_k")
    shapes = tuple(GEMM.shapes(config, {"g": 1, "r": 300}).values())
    return KernelCall(gpu, TARGETS["sm_90"], GEMM, config, shapes)


def window_call(gpu=GPU) -> KernelCall:
    config = conv.ConvConfig(16, 24, float_type=f32)
    sizes = {"n": 1, "h": 8, "w": 8, "p": 8, "q": 8, "s": 2}
    shapes = tuple(conv.BACKWARD_WEIGHT.shapes(config, sizes).values())
    return KernelCall(gpu, TARGETS["sm_90"], conv.BACKWARD_WEIGHT, config, shapes)


def text_of(*calls: KernelCall, choice: int = 1) -> str:
    """What `dumps` says where each call has one of its variations."""
    source = TunedPlans()
    source._plans = {call: variations(call)[choice] for call in calls}
    return source.dumps()


# ---- texts


def test_round_trip():
    calls = [layer_call(), layer_call(64), product_call(), layer_call(gpu="Other")]
    text = text_of(*calls)
    oxijax.config.tuning.loads(text)
    assert len(oxijax.config.tuning) == 4
    assert oxijax.config.tuning.dumps() == text
    for call in calls:
        assert tuned_plans.find(call) == variations(call)[1]
    assert tuned_plans.find(layer_call(96)) is None
    content = json.loads(text)
    assert content["oxijax"] == oxijax.__version__
    assert [entry["gpu"] for entry in content["plans"]].count("Other") == 1
    assert text == text_of(*reversed(calls)), "the order is not that of their coming"


def test_loads_adds():
    oxijax.config.tuning.loads(text_of(layer_call(), product_call()))
    oxijax.config.tuning.loads(text_of(layer_call(), choice=2))
    assert len(oxijax.config.tuning) == 2
    assert tuned_plans.find(layer_call()) == variations(layer_call())[2]
    assert tuned_plans.find(product_call()) == variations(product_call())[1]


def test_clear(folder):
    (folder / FILE).write_text(text_of(layer_call()))
    assert tuned_plans.find(layer_call()) is not None
    oxijax.config.tuning.clear()
    assert len(oxijax.config.tuning) == 0
    assert tuned_plans.find(layer_call()) is None
    assert (folder / FILE).exists()
    assert repr(oxijax.config.tuning) == f"oxijax.config.tuning(0 plans, directory={str(folder)!r})"


def changed(**fields):
    """Of a text with one plan, another: fields of the entry, or of its plan, are others."""
    content = json.loads(text_of(layer_call()))
    (entry,) = content["plans"]
    plan_fields = {name[5:]: fields.pop(name) for name in list(fields) if name[:5] == "plan_"}
    entry.update(fields)
    if isinstance(entry["plan"], dict):
        entry["plan"].update(plan_fields)
    return json.dumps(content)


def without(*path):
    content = json.loads(text_of(layer_call()))
    place = functools.reduce(lambda value, key: value[key], path[:-1], content)
    del place[path[-1]]
    return json.dumps(content)


MALFORMED = {
    "no JSON": ("{", "text must be JSON: "),
    "a list": ("[]", "text must be an object with format, oxijax and plans"),
    "no version": (without("oxijax"), "text must be an object with format"),
    "another format": (
        text_of(layer_call()).replace('"format": 1', '"format": 2'),
        "text must be of format 1, got 2",
    ),
    "plans": ('{"format": 1, "oxijax": "0", "plans": {}}', "plans must be a list, got {}"),
    "an entry": ('{"format": 1, "oxijax": "0", "plans": [3]}', "plan 1: an object with gpu, .* 3"),
    "no GPU": (without("plans", 0, "gpu"), "plan 1: an object with gpu, target"),
    "gpu": (changed(gpu=3), "plan 1: gpu must be a str, got 3"),
    "target": (changed(target="sm_1"), "plan 1: target must be one of sm_75.*'sm_1'"),
    "kernel": (changed(kernel="convolve"), "plan 1: no kernel 'convolve' is registered"),
    "config": (without("plans", 0, "config", "groups"), "plan 1: DeformConvConfig has the fields"),
    "groups": (
        changed(config={**json.loads(text_of(layer_call()))["plans"][0]["config"], "groups": 3}),
        "plan 1: groups=3 must divide",
    ),
    "shapes": (changed(shapes=[[1, -2]]), "plan 1: shapes must be lists of sizes"),
    "other shapes": (changed(shapes=[[1, 2]]), "plan 1: kernel deform_conv_forward has the op"),
    "no plan": (changed(plan=None), "a plan of kernel deform_conv_forward has the fields m, n"),
    "a field too many": (changed(plan_colour=3), "has the fields m, n, k, warps.*'colour': 3"),
    "a field too few": (without("plans", 0, "plan", "stages"), "has the fields m, n, k"),
    "a table": (changed(plan_table="Table"), "is not tried with this plan here: .*'Table'"),
    "a tile": (changed(plan_m=4096), "is not tried with this plan here: .*4096"),
    "a float": (changed(plan_n=32.0), "is not tried with this plan here"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_texts(name):
    text, message = MALFORMED[name]
    with pytest.raises(ValueError, match=message):
        oxijax.config.tuning.loads(text)
    assert len(oxijax.config.tuning) == 0


STRANGE = [None, True, -1, 0, 1, 7, 2**31, 2**64, 0.5, "x", [], [[]], {}, {"dtype": "f32"}]


def leaves(value, path=()):
    """The paths of all values within what JSON has."""
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from leaves(value[key], (*path, key))


@pytest.mark.parametrize("name", ["layer", "product", "window"])
def test_strange_values(name):
    """Whatever stands in a text, it is a ValueError, or each entry is a plan or a fault."""
    call = {"layer": layer_call, "product": product_call, "window": window_call}[name]()
    content, accepted = json.loads(text_of(call)), 0
    for path in list(leaves(content)):
        for value in STRANGE:
            other = copy.deepcopy(content)
            if path:
                functools.reduce(lambda place, key: place[key], path[:-1], other)[path[-1]] = value
            else:
                other = value
            with contextlib.suppress(ValueError):
                entries = plans_module._read_text(json.dumps(other))
                plans, faults = plans_module._read_entries(entries)
                assert len(plans) + len(faults) == len(entries)
                accepted += bool(plans)
    assert 2 <= accepted < 100  # the names of GPU and version may be others


def test_text_is_no_str():
    with pytest.raises(TypeError, match=r"text must be a str, got b'\{\}'"):
        oxijax.config.tuning.loads(b"{}")  # pyright: ignore[reportArgumentType]


def test_plans_that_are_not_written_are_refused(monkeypatch):
    text = text_of(product_call(), layer_call())

    def launch(self, config, target, shapes, *, plan):
        assert self is GEMM, "no tiles of this size"

    monkeypatch.setattr(type(GEMM), "launch", launch)
    with pytest.raises(ValueError, match="kernel deform_conv_forward cannot be written with Samp"):
        oxijax.config.tuning.loads(text)
    assert len(oxijax.config.tuning) == 0


# ---- files


def test_a_file_is_read_once_and_for_its_gpu(folder):
    (folder / FILE).write_text(text_of(layer_call(), layer_call(gpu="Other")))
    assert len(oxijax.config.tuning) == 0, "nothing is read before a kernel is launched"
    assert tuned_plans.find(layer_call(gpu="Another")) is None
    assert tuned_plans.find(layer_call()) == variations(layer_call())[1]
    assert tuned_plans.find(layer_call(gpu="Other")) is None
    (folder / FILE).unlink()
    assert tuned_plans.find(layer_call()) == variations(layer_call())[1]


def test_files_go_before_what_is_shipped(folder, monkeypatch):
    shipped = folder / "shipped"
    shipped.mkdir()
    monkeypatch.setattr(plans_module, "_SHIPPED", shipped)
    (shipped / "h100.json").write_text(text_of(layer_call(), product_call()))
    (folder / FILE).write_text(text_of(layer_call(), choice=2))
    assert tuned_plans.find(layer_call()) == variations(layer_call())[2]
    assert tuned_plans.find(product_call()) == variations(product_call())[1]


def test_what_is_shipped_is_read():
    """With all that the package has: each is a plan that this version tries."""
    for file in plans_module._SHIPPED.glob("*.json"):
        TunedPlans().loads(file.read_text())


def test_what_a_process_has_goes_before_its_files(folder):
    (folder / FILE).write_text(text_of(layer_call(), product_call()))
    oxijax.config.tuning.loads(text_of(layer_call(), choice=2))
    assert tuned_plans.find(layer_call()) == variations(layer_call())[2]
    assert tuned_plans.find(product_call()) == variations(product_call())[1]


UNREADABLE = {
    "no JSON": (lambda file: file.write_text("{"), "text must be JSON"),
    "another format": (
        lambda file: file.write_text(MALFORMED["another format"][0]),
        "text must be of format 1, got 2",
    ),
    "no UTF-8": (lambda file: file.write_bytes(b"\xff"), "can't decode byte 0xff"),
    "a folder": (pathlib.Path.mkdir, "it is no regular file"),
    "a pipe": (os.mkfifo, "it is no regular file"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_cannot_be_read_is_a_warning(folder, name):
    """And it stays, with the plans that someone may still find in it."""
    make, message = UNREADABLE[name]
    make(folder / FILE)
    before = (folder / FILE).stat()
    with pytest.warns(RuntimeWarning, match=rf"not read: .*{FILE}: .*{message}.*\nMend or delete"):
        assert tuned_plans.find(layer_call()) is None
    assert tuned_plans.find(layer_call()) is None
    with pytest.warns(RuntimeWarning, match=rf"in this process alone: .*{FILE}: .*{message}"):
        tuned_plans.keep({layer_call(): variations(layer_call())[1]})
    assert tuned_plans.find(layer_call()) == variations(layer_call())[1]
    assert os.listdir(folder) == [FILE]
    after = (folder / FILE).stat()
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


def test_entries_are_judged_one_by_one(folder):
    """Of a file those are used that mean something here, and `keep` leaves the others in it."""
    strangers = [entry for entry, _ in STRANGERS.values()]
    known = entry_of(layer_call())
    (folder / FILE).write_text(text_with(*strangers[:3], known, *strangers[3:]))
    with pytest.warns(RuntimeWarning, match="6 of 7 tuned plans are not used") as caught:
        assert tuned_plans.find(layer_call()) == variations(layer_call())[1]
    (warning,) = caught
    told = str(warning.message).split("\n")
    assert told[0].endswith(f"and stay in {folder / FILE}:")
    assert told[1].startswith("plan 1: no kernel 'scale' is registered; import the module")
    assert [line[:7] for line in told[2:]] == ["plan 2:", "plan 3:", "..."]

    for _ in range(2):
        tuned_plans.keep({product_call(): variations(product_call())[1]})
        left = json.loads((folder / FILE).read_text())["plans"]
        assert len(left) == 8
        for entry in (*strangers, known, entry_of(product_call())):
            assert entry in left


@pytest.mark.parametrize("name", STRANGERS)
def test_why_an_entry_is_not_used(folder, name):
    entry, reason = STRANGERS[name]
    (folder / FILE).write_text(text_with(entry))
    with pytest.warns(RuntimeWarning, match=f"1 of 1 tuned plans .*\nplan 1: {reason}"):
        assert tuned_plans.find(layer_call()) is None


def test_a_call_that_is_tuned_again_has_one_entry(folder):
    """Whatever its plan was before."""
    (folder / FILE).write_text(text_with(entry_of(layer_call(), plan="the fastest")))
    tuned_plans.keep({layer_call(): variations(layer_call())[1]})
    assert (folder / FILE).read_text() == text_of(layer_call())


def test_warnings_that_are_errors_cost_no_plans(folder):
    entries = entry_of(layer_call(), kernel="scale"), entry_of(layer_call())
    (folder / FILE).write_text(text_with(*entries))
    with pytest.raises(RuntimeWarning, match="1 of 2"):  # as in all tests
        tuned_plans.find(layer_call())
    assert tuned_plans.find(layer_call()) == variations(layer_call())[1]


def test_kernels_that_are_imported_late(folder, monkeypatch):
    """A package's kernels have their plans, also where others were launched before its import."""
    monkeypatch.setattr("ptx.registry._KERNELS", dict(kernels()))
    call = dataclasses.replace(
        layer_call(), kernel=dataclasses.replace(deform_conv.FORWARD, name="late")
    )
    (folder / FILE).write_text(text_of(call, product_call()))
    with pytest.warns(RuntimeWarning, match="1 of 2 .*\nplan 2: no kernel 'late' is registered"):
        assert tuned_plans.find(product_call()) == variations(product_call())[1]
    register(call.kernel)
    assert tuned_plans.find(call) == variations(call)[1]
    oxijax.config.tuning.clear()
    assert tuned_plans.find(call) is None


def test_what_killed_writers_have_left_is_deleted_a_day_later(folder):
    now = time.time()
    names = {"tuning-Other-0.1.0.json1.new": 25, f"{FILE}2.new": 23, "mine.json3.new": 25}
    for name, hours in names.items():
        (folder / name).write_text("{")
        os.utime(folder / name, (now, now - hours * 60 * 60))
    tuned_plans.keep({layer_call(): variations(layer_call())[1]})
    assert sorted(os.listdir(folder)) == sorted([FILE, f"{FILE}2.new", "mine.json3.new"])


def test_files_add_up(folder):
    layer, product, other = layer_call(), product_call(), layer_call(gpu="Other")
    tuned_plans.keep({layer: variations(layer)[1], other: variations(other)[1]})
    oxijax.config.tuning.clear()  # as in a later process, which has read nothing
    tuned_plans.keep({product: variations(product)[1]})
    assert sorted(os.listdir(folder)) == [FILE, FILE.replace("Fake-H100-80GB", "Other")]
    assert (folder / FILE).read_text() == text_of(layer, product)
    assert oxijax.config.tuning.dumps() == text_of(product)


def test_a_file_that_cannot_be_written_is_a_warning(folder, monkeypatch):
    monkeypatch.setenv("OXIJAX_TUNING_DIR", str(folder / "file" / "folder"))
    (folder / "file").write_text("")
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
from oxijax._core.tuning.calls import KernelCall
from oxijax._core.tuning.plans import tuned_plans
from oxijax._core.tuning.variations import variations
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


def test_a_fresh_process_loads_what_another_dumps(folder):
    """It has imported nothing but oxijax. Its folder is in the user's home."""
    settings = {"OXIJAX_TUNING_DIR": "~/plans", "HOME": str(folder)}
    status, text = python("-c", DUMP, **settings)
    assert status == 0, text
    assert (folder / "plans" / FILE).read_text() == text
    assert json.loads(text)["plans"][0]["kernel"] == "conv_forward"
    assert python("-c", LOADS, text, **settings) == (0, text)


WRITE = f"""{CALL}
plans = {{call(outputs): variations(call(outputs))[1] for outputs in map(int, sys.argv[1:])}}
print("ready", flush=True)
input()
for each in [*plans] * 20:
    tuned_plans.keep({{each: plans[each]}})
"""


def test_two_processes_that_write_at_once(folder):
    """Whoever reads the file finds entries, and what means nothing to both of them stays."""
    stranger = entry_of(layer_call(), kernel="scale")
    (folder / FILE).write_text(text_with(stranger))
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
            assert stranger in json.loads((folder / FILE).read_text())["plans"]
            reads += 1
    assert [writer.returncode for writer in writers] == [0, 0]
    assert os.listdir(folder) == [FILE]
    left = json.loads((folder / FILE).read_text())["plans"]
    assert 3 <= len(left) <= 5  # those of the last to write at least


# ---- use


def operands_of(*shapes):
    random = np.random.default_rng(0)
    return [jnp.asarray(random.standard_normal(shape), jnp.float32) for shape in shapes]


LAYER = operands_of((1, 6, 7, 24), (1, 6, 7, 18), (3, 3, 24, 24))


@pytest.fixture
def texts(monkeypatch):
    """The PTX of all that is loaded into the emulator."""
    loaded, load = [], _emulation.load

    def noted(text, arguments, schedule):
        loaded.append(text)
        return load(text, arguments, schedule)

    monkeypatch.setattr(_emulation, "load", noted)
    return loaded


def test_a_call_has_the_tuned_plan(texts, folder):
    """In a program that is compiled already too; and its own choice again, without the plan."""
    with emulate_gpu("sm_80"):
        layer = jax.jit(oxijax.deform_conv)
        with noted_calls() as calls:
            own = layer(*LAYER)
        (call,) = calls
        assert call.gpu == "emulated sm_80"
        plan = next(p for p in variations(call) if p.threads != call.instance.plan.threads)
        text = call.kernel.launch(call.config, call.target, call.shapes, plan=plan).text
        assert texts[-1] != text
        tuned_plans._plans[call] = plan
        kept = oxijax.config.tuning.dumps()
        oxijax.config.tuning.clear()

        oxijax.config.tuning.loads(kept)
        tuned = layer(*LAYER)
        assert texts[-1] == text
        assert re.search(rf"\.(?:max|req)ntid\s+{plan.threads}\b", text)
        np.testing.assert_allclose(tuned, own, rtol=0, atol=1e-5)
        again = jax.jit(oxijax.deform_conv)(*LAYER)
        np.testing.assert_array_equal(again, tuned)

        oxijax.config.tuning.clear()
        np.testing.assert_array_equal(layer(*LAYER), own)
        assert texts[-1] == texts[0] != text


def test_emulated_gpus_have_no_files(folder, texts):
    with emulate_gpu("sm_80"):
        with noted_calls() as calls:
            oxijax.deform_conv(*LAYER)
        oxijax.clear_caches()
        (call,) = calls
        name = f"tuning-emulated-sm_80-{oxijax.__version__}.json"
        (folder / name).write_text(text_of(call))
        oxijax.deform_conv(*LAYER)
    assert len(texts) == 2
    assert texts[0] == texts[1]


@pytest.fixture
def emulated_times(monkeypatch):
    """Has `tune` take the emulated GPU for one, on which the last candidate is the fastest."""

    def times(call, launches):
        return [float(len(launches) - index) for index, _ in enumerate(launches)]

    monkeypatch.setattr(tune_module, "_check_gpu", lambda: None)
    monkeypatch.setattr(tune_module, "time_launches", times)
    with emulate_gpu("sm_80"):
        yield


def test_tune_finds_and_keeps(emulated_times, texts, folder):
    """Calls in gradients, loops and compiled programs; and each of them once."""
    x, offset, weight = LAYER

    @jax.jit
    def gradients(params):
        def loss(params):
            def step(y, _):
                return oxijax.deform_conv(y, *params), None

            return jnp.sum(jax.lax.scan(step, x, length=2)[0])

        return jax.grad(loss)(params)

    before = jax.device_get(gradients((offset, weight)))
    shape = jax.ShapeDtypeStruct(offset.shape, offset.dtype)
    tuned = oxijax.tune(gradients, (shape, weight))
    assert sorted(call.kernel.removeprefix("deform_conv_") for call in tuned) == [
        *("backward_input", "backward_offset", "backward_weight", "forward"),
    ]
    assert len(tuned) == len(oxijax.config.tuning) == 4
    for call in tuned:
        assert call.kept is call.candidates[-1]
        assert 2 <= len(call.candidates) <= 8
    (file,) = folder.iterdir()
    assert file.read_text() == oxijax.config.tuning.dumps()
    texts.clear()
    after = jax.device_get(gradients((offset, weight)))
    assert len(texts) == 4
    for got, expected in zip(after, before, strict=True):
        error = np.linalg.norm(got - expected) / np.linalg.norm(expected)
        assert error < 1e-3  # TF32


def test_tune_finds_the_part_of_a_device(emulated_times):
    mesh, spec = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,)), jax.P("data")
    layer = jax.shard_map(
        oxijax.deform_conv, mesh=mesh, in_specs=(spec, spec, jax.P()), out_specs=spec
    )
    x, offset, weight = LAYER
    (call,) = oxijax.tune(layer, jnp.tile(x, (4, 1, 1, 1)), jnp.tile(offset, (4, 1, 1, 1)), weight)
    assert call.shapes["x"] == (2, 6, 7, 24)
    assert call.shapes["weight"] == (24, 3, 3, 24)


def test_the_kernels_own_choice_is_kept_too(emulated_times, monkeypatch):
    """Else what is shipped would go before it."""
    monkeypatch.setattr(tune_module, "time_launches", lambda call, launches: [1.0] * len(launches))
    (call,) = oxijax.tune(oxijax.deform_conv, *LAYER)
    assert call.kept is call.candidates[0]
    assert list(tuned_plans._plans.values()) == [call.kept.plan]


# ---- errors


def test_without_a_gpu():
    with pytest.raises(RuntimeError, match=r"JAX has none here, but .*cpu.*loads\(\) elsewhere"):
        oxijax.tune(oxijax.deform_conv, *LAYER)


def test_on_an_emulated_gpu():
    with emulate_gpu(), pytest.raises(RuntimeError, match="emulate_gpu has no time"):
        oxijax.tune(oxijax.deform_conv, *LAYER)


def test_wrong_arguments():
    with pytest.raises(TypeError, match="function must be a function, got 3"):
        oxijax.tune(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"args\[1\]\['x'\]\[0\] must be an array .* got 'SAME'"):
        oxijax.tune(oxijax.deform_conv, LAYER[0], {"x": ["SAME"]})
    with pytest.raises(TypeError, match=r"args\[0\] must be an array with values"):
        jax.jit(lambda x: oxijax.tune(oxijax.deform_conv, x))(LAYER[0])


def test_functions_without_kernels(emulated_times):
    with pytest.raises(ValueError, match="function must launch kernels of oxijax"):
        oxijax.tune(jnp.sum, LAYER[0])
    empty = (x[:0] for x in LAYER[:2])
    with pytest.raises(ValueError, match="what is empty needs none"):
        oxijax.tune(oxijax.deform_conv, *empty, LAYER[2])


# ---- the report


def test_the_table():
    call = layer_call()
    own, other = variations(call)[:2]
    shapes = dict(call.instance.shapes)
    timed = TimedPlan(own, 20.0, 15.0), TimedPlan(other, 10.5, 16.0)
    tuned = Tuned((TunedCall(GPU, call.kernel.name, call.config, shapes, timed),))
    assert list(tuned) == [tuned[0]]
    assert tuned[0].ordered_by == "model"
    assert tuned[0].model_first is timed[0]
    assert tuned[0].kept is timed[1]
    lines = str(tuned).splitlines()
    assert lines == repr(tuned).splitlines()
    assert lines[0].startswith(f"deform_conv_forward on {GPU}: x[1, 8, 8, 64], offset[1, 8, 8, 18]")
    assert lines[2].endswith("<- the kernel's own choice, the model's first")
    assert "table=CornerTable" in lines[2]
    assert lines[3].split() == [*("10.5", "16.0", "m=32,", "warps=(2,", "1)"), "<-", "kept"]
    assert "<" not in lines[3].replace("<- kept", "")

    unmodelled = TunedCall(GPU, "gemm", None, {}, (TimedPlan(own, 1.0),))
    assert unmodelled.ordered_by == "generation"
    assert unmodelled.model_first is None
