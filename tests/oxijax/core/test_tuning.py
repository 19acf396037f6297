"""`oxijax.tune` and `oxijax.config.tuning`: what is noted, kept and used. No GPU, and no time."""

import contextlib
import copy
import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from support.tuned_calls import FILE, GPU, layer_call, product_call, text_of, window_call

import oxijax
from oxijax._core.calls import tuned_plans as plans_module
from oxijax._core.calls.kernel_call import noted_calls
from oxijax._core.calls.tuned_plans import tuned_plans
from oxijax._core.calls.variations import variations
from oxijax._core.tuning import tune as tune_module
from oxijax._core.tuning.report import TimedPlan, Tuned, TunedCall
from oxijax.testing import emulate_gpu
from ptx.kernels.gemm import GEMM

pytestmark = pytest.mark.usefixtures("tuning_folder")


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


def test_clear(tuning_folder):
    (tuning_folder / FILE).write_text(text_of(layer_call()))
    assert tuned_plans.find(layer_call()) is not None
    oxijax.config.tuning.clear()
    assert len(oxijax.config.tuning) == 0
    assert tuned_plans.find(layer_call()) is None
    assert (tuning_folder / FILE).exists()
    assert (
        repr(oxijax.config.tuning)
        == f"oxijax.config.tuning(0 plans, directory={str(tuning_folder)!r})"
    )


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
                entries = plans_module._parse_text(json.dumps(other))
                plans, faults = plans_module._parse_entries(entries)
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


# ---- use


def operands_of(*shapes):
    random = np.random.default_rng(0)
    return [jnp.asarray(random.standard_normal(shape), jnp.float32) for shape in shapes]


LAYER = operands_of((1, 6, 7, 24), (1, 6, 7, 18), (3, 3, 24, 24))


def test_a_call_has_the_tuned_plan(loads, tuning_folder):
    """In a program that is compiled already too; and its own choice again, without the plan."""
    with emulate_gpu("sm_80"):
        layer = jax.jit(oxijax.deform_conv)
        with noted_calls() as calls:
            own = layer(*LAYER)
        (call,) = calls
        assert call.gpu == "emulated sm_80"
        plan = next(p for p in variations(call) if p.threads != call.instance.plan.threads)
        text = call.kernel.launch(call.config, call.target, call.shapes, plan=plan).text
        assert loads[-1] != text
        tuned_plans._plans[call] = plan
        kept = oxijax.config.tuning.dumps()
        oxijax.config.tuning.clear()

        oxijax.config.tuning.loads(kept)
        tuned = layer(*LAYER)
        assert loads[-1] == text
        assert re.search(rf"\.(?:max|req)ntid\s+{plan.threads}\b", text)
        np.testing.assert_allclose(tuned, own, rtol=0, atol=1e-5)
        again = jax.jit(oxijax.deform_conv)(*LAYER)
        np.testing.assert_array_equal(again, tuned)

        oxijax.config.tuning.clear()
        np.testing.assert_array_equal(layer(*LAYER), own)
        assert loads[-1] == loads[0] != text


def test_emulated_gpus_have_no_files(tuning_folder, loads):
    with emulate_gpu("sm_80"):
        with noted_calls() as calls:
            oxijax.deform_conv(*LAYER)
        oxijax.clear_caches()
        (call,) = calls
        name = f"tuning-emulated-sm_80-{oxijax.__version__}.json"
        (tuning_folder / name).write_text(text_of(call))
        oxijax.deform_conv(*LAYER)
    assert len(loads) == 2
    assert loads[0] == loads[1]


@pytest.fixture
def emulated_times(monkeypatch):
    """Has `tune` take the emulated GPU for one, on which the last candidate is the fastest."""

    def times(call, launches):
        return [float(len(launches) - index) for index, _ in enumerate(launches)]

    monkeypatch.setattr(tune_module, "_check_gpu", lambda: None)
    monkeypatch.setattr(tune_module, "time_launches", times)
    with emulate_gpu("sm_80"):
        yield


def test_tune_finds_and_keeps(emulated_times, loads, tuning_folder):
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
    (file,) = tuning_folder.iterdir()
    assert file.read_text() == oxijax.config.tuning.dumps()
    loads.clear()
    after = jax.device_get(gradients((offset, weight)))
    assert len(loads) == 4
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
