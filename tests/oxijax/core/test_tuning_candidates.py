"""The plans that `oxijax.tune` times: kernels are right with each of them, and which are chosen."""

import dataclasses

import numpy as np
import pytest

from oxijax._core.calls.kernel_call import KernelCall, emulated_gpu
from oxijax._core.calls.variations import variations
from oxijax._core.tuning import candidates as module
from oxijax._core.tuning.candidates import MOST, candidates
from oxijax._core.tuning.operands import random_operands
from ptx import registry
from ptx.emulator import Buffer
from ptx.isa.assembler import ToolNotFoundError
from ptx.isa.dtypes import bf16, f16, f32, f64
from ptx.isa.targets import TARGETS
from ptx.kernels import conv, deform_conv
from ptx.kernels.deform_conv.backward_input_gather import CELL_BORDER
from ptx.kernels.gemm import GEMM, choose
from ptx.kernels.sampling import BACKWARD_VALUE
from ptx.kernels.sampling import CONFIGS as SAMPLING
from ptx.replay.warps import TraceError
from ptx.testing.call import launch, numpy_dtype
from ptx.tile.direct import DirectPlan
from ptx.tile.plan import TilePlan

# Relative Frobenius norms: sums are in another order, and results are rounded once.
TOLERANCES = {"bfloat16": 8e-3, "float16": 1e-3, "float32": 2e-6, "float64": 1e-13}


def call_of(kernel, config, target="sm_80", **sizes) -> KernelCall:
    """A call with arrays of some sizes."""
    shapes = tuple(kernel.shapes(config, sizes).values())
    return KernelCall(emulated_gpu(target), TARGETS[target], kernel, config, shapes)


def of_images(kernel, config, target="sm_80", parts=1) -> KernelCall:
    """A call with two images of 6 x 7, whose gradient to weights is a sum of some parts."""
    p, q = config.output_size(6, 7)
    return call_of(kernel, config, target, n=2, h=6, w=7, p=p, q=q, s=parts)


def of_cells(config) -> KernelCall:
    """A call of the gradient to the input without atomics, for an image of 4 x 5."""
    h, w = 4, 5
    cells = (h + 2 * CELL_BORDER) * (w + 2 * CELL_BORDER)
    kernel = deform_conv.BACKWARD_INPUT_GATHER
    return call_of(kernel, config, n=1, h=h, w=w, p=h, q=w, s=h * w, z=cells + 1)


def of_product(m, n, k, strategy, dtype, target="sm_80", **options) -> KernelCall:
    config = choose(m, n, k, float_type=dtype, strategy=strategy, **options)
    return call_of(GEMM, config, target, g=1, r=max(m, n))


def layer(kind, channels, outputs, dtype, **fields):
    return kind(channels, outputs, float_type=dtype, use_bias=True, **fields)


DEFORM, CONV = deform_conv.DeformConvConfig, conv.ConvConfig
CALLS = {
    "deform_conv forward": of_images(deform_conv.FORWARD, layer(DEFORM, 64, 96, bf16)),
    "deform_conv forward, tiled": of_images(deform_conv.FORWARD, layer(DEFORM, 24, 40, f32)),
    "deform_conv forward, narrow offset groups": of_images(
        deform_conv.FORWARD, layer(DEFORM, 64, 64, f16, offset_groups=8)
    ),
    "deform_conv forward, sm_75": of_images(
        deform_conv.FORWARD, layer(DEFORM, 24, 40, f16), "sm_75"
    ),
    "deform_conv forward, depthwise": of_images(
        deform_conv.FORWARD, layer(DEFORM, 16, 16, f32, groups=16)
    ),
    "deform_conv to input": of_images(
        deform_conv.BACKWARD_INPUT, layer(DEFORM, 64, 64, bf16), "sm_90"
    ),
    "deform_conv to input, tiled": of_images(
        deform_conv.BACKWARD_INPUT, layer(DEFORM, 24, 20, f64)
    ),
    "deform_conv to input, from lists": of_cells(layer(DEFORM, 32, 16, f32)),
    "deform_conv to offset": of_images(deform_conv.BACKWARD_OFFSET, layer(DEFORM, 64, 64, bf16)),
    "deform_conv to offset, tiled": of_images(
        deform_conv.BACKWARD_OFFSET, layer(DEFORM, 24, 20, f32, exact=True)
    ),
    "deform_conv to weights": of_images(
        deform_conv.BACKWARD_WEIGHT, layer(DEFORM, 80, 72, f16), parts=3
    ),
    "deform_conv to weights, narrow offset groups": of_images(
        deform_conv.BACKWARD_WEIGHT, layer(DEFORM, 32, 40, f32, offset_groups=4), parts=2
    ),
    "conv forward": of_images(conv.FORWARD, layer(CONV, 64, 96, bf16)),
    "conv forward, tiled": of_images(conv.FORWARD, layer(CONV, 12, 40, f32)),
    "conv to input": of_images(conv.BACKWARD_INPUT, layer(CONV, 40, 64, f16)),
    "conv to weights": of_images(conv.BACKWARD_WEIGHT, layer(CONV, 72, 72, bf16), parts=3),
    "conv to weights, depthwise": of_images(
        conv.BACKWARD_WEIGHT, layer(CONV, 8, 8, f32, groups=8), parts=2
    ),
    "gemm shallow_k": of_product(300, 40, 32, "shallow_k", bf16),
    "gemm shallow_k, transposed": of_product(
        300, 40, 32, "shallow_k", f16, transpose_a=True, transpose_b=True
    ),
    "gemm cache_persistent": of_product(200, 24, 300, "cache_persistent", f32, exact=True),
    "gemm warp_parallel": of_product(40, 24, 2000, "warp_parallel", bf16),
    "gemm warp_parallel, sm_75": of_product(40, 24, 700, "warp_parallel", f32, "sm_75"),
}


def test_lists_are_of_samples_that_are_spread_evenly():
    call = CALLS["deform_conv to input, from lists"]
    operands, sizes = random_operands(call), call.instance.sizes
    starts, order = operands["starts"], operands["order"]
    counts = np.diff(starts)
    assert (starts[..., 0] == 0).all()
    assert (starts[..., -1] == sizes["s"]).all()
    assert ((counts == counts.min()) | (counts == counts.min() + 1)).all()
    assert (order == np.arange(sizes["s"])).all()


def results(call: KernelCall, plan) -> dict[str, np.ndarray]:
    """What a call's kernel writes with a plan; the emulator raises if that is a fault of it."""
    kernel, config = call.kernel, call.config
    declared = kernel.results(config)
    initial = {result.initial for result in declared.values() if result.has_initial(config)}
    buffers = {
        name: Buffer(values.copy(), writable=name in initial)
        for name, values in random_operands(call).items()
    }
    for name, result in declared.items():
        if result.initial is not None and result.has_initial(config):
            buffers[name] = buffers[result.initial]
        else:
            empty = np.empty(call.instance.shapes[name], numpy_dtype(result.dtype_of(config)))
            buffers[name] = Buffer(empty, initialized=False)
    report = launch(kernel, config, call.target, buffers, plan=plan, check_races=True)
    assert report is not None
    return {name: buffers[name].array for name in declared}


@pytest.fixture
def no_ptxas(monkeypatch):
    """A machine without the tools of CUDA."""

    def missing(*_):
        raise ToolNotFoundError("no ptxas here")

    for name in ("assemble", "find_ptxas", "find_nvdisasm"):
        monkeypatch.setattr(module, name, missing)


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", CALLS)
def test_results_are_those_of_the_kernels_own_choice(no_ptxas, name):
    call = CALLS[name]
    own, *others = candidates(call)
    assert own.plan == call.instance.plan
    assert others
    expected = results(call, own.plan)
    for other in others:
        assert other.plan != own.plan
        for result, value in results(call, other.plan).items():
            wide, exact = value.astype(np.float64), expected[result].astype(np.float64)
            error = np.linalg.norm(wide - exact) / np.linalg.norm(exact)
            assert error <= TOLERANCES[value.dtype.name], (result, other.plan)


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_queries_have_tiles_or_not(no_ptxas, target):
    """Of the gradient to images of a sampling operator: factors of tiles are rounded as images."""
    call = call_of(BACKWARD_VALUE, SAMPLING["window/bf16"], target, n=2, q=49)
    own, other = candidates(call)
    assert own.plan.slice > 0
    assert other.plan.slice == 0
    (found,), (expected,) = (results(call, each.plan).values() for each in (own, other))
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error <= TOLERANCES["bfloat16"]


@pytest.mark.parametrize("name", CALLS)
def test_variations_change_one_thing(name):
    """And what decides on the shapes and values of arrays stays."""
    own, *others = variations(CALLS[name])
    for plan in others:
        assert type(plan) is type(own)
        changed = {
            field.name
            for field in dataclasses.fields(plan)
            if getattr(plan, field.name) != getattr(own, field.name)
        }
        assert changed in (
            *({"m", "warps"}, {"n", "warps"}, {"n"}, {"warps"}, {"stages"}, {"min_blocks"}),
        )
        if isinstance(plan, TilePlan):
            assert plan.m / plan.warps[0] <= own.m / own.warps[0]


def test_every_kernel_is_here():
    """A plan with tiles is varied whatever its kernel: a new one needs a call here."""
    varied = {
        kernel.name
        for kernel in registry.KERNELS.values()
        for config in kernel.configs.values()
        if kernel.body.__module__.startswith("ptx.")
        and isinstance(kernel.plan(config, TARGETS["sm_80"], None), TilePlan | DirectPlan)
    }
    assert varied == {call.kernel.name for call in CALLS.values()}
    assert len(varied) == 9


def test_candidates_are_distinct_and_few(no_ptxas):
    for call in CALLS.values():
        found = candidates(call)
        assert 1 <= len(found) <= MOST
        texts = {(c.launch.text, c.launch.grid) for c in found}
        assert len(texts) == len(found)
        assert all(c.launch.dynamic_shared <= call.target.shared_per_block for c in found)
        assert all(c.modelled_us is None for c in found)


def test_what_spills_is_no_candidate(monkeypatch):
    call = CALLS["deform_conv forward"]
    every, _ = candidates(call), module.assemble
    assert len(every) > 3
    spilling = every[2].launch.text

    def assemble(text, target):
        (assembled,) = module_assemble(text, target).values()
        return {"": dataclasses.replace(assembled, spill_stores=4 * (text == spilling))}

    module_assemble = module.assemble
    monkeypatch.setattr(module, "assemble", assemble)
    left = [candidate.plan for candidate in candidates(call)]
    assert left[0] == every[0].plan
    assert every[2].plan not in left
    assert set(left) <= set(variations(call))


def on_h100(call: KernelCall) -> KernelCall:
    return dataclasses.replace(call, gpu="NVIDIA H100 80GB HBM3", target=TARGETS["sm_90"])


def test_the_model_orders_them(monkeypatch):
    """By modelled time; what it knows nothing of, or has no time for, comes last."""
    call = on_h100(CALLS["conv forward"])
    order = variations(call)

    def modelled(kernel, config, operands, shapes, machine, *, plan):
        assert machine.sheet.name == "H100 SXM"
        assert list(operands) == list(kernel.operands(config))
        if order.index(plan) == 2:
            raise TraceError("another way")
        return dataclasses.make_dataclass("Modelled", ["us"])(100.0 - order.index(plan))

    monkeypatch.setattr(module, "model", modelled)
    monkeypatch.setattr(module, "MOST", 4)
    found = candidates(call)
    assert found[0].plan == order[0]
    assert found[0].modelled_us == 100.0
    times = [candidate.modelled_us or 0.0 for candidate in found[1:]]
    assert times == sorted(times)
    assert order[2] not in [candidate.plan for candidate in found]
    assert len(found) == 4

    monkeypatch.setattr(module, "_MODEL_SECONDS", 0.0)
    found = candidates(call)
    assert all(candidate.modelled_us is None for candidate in found)
    places = [order.index(candidate.plan) for candidate in found]
    assert places == sorted(places)


@pytest.mark.parametrize("gpu", ["NVIDIA L4", "emulated sm_90"])
def test_gpus_without_a_machine_are_not_modelled(monkeypatch, gpu):
    monkeypatch.setattr(module, "model", None)
    call = dataclasses.replace(on_h100(CALLS["gemm shallow_k"]), gpu=gpu)
    assert all(candidate.modelled_us is None for candidate in candidates(call))


def test_the_model_itself(monkeypatch):
    """It says how long each plan takes; nothing of machine code that it cannot follow."""
    monkeypatch.setattr(module, "variations", lambda call: variations(call)[:2])
    own, other = candidates(on_h100(CALLS["gemm shallow_k"]))
    assert own.modelled_us is not None
    assert other.modelled_us is not None
    assert 3 < other.modelled_us < 30
    assert own.modelled_us != other.modelled_us

    own, other = candidates(on_h100(CALLS["gemm warp_parallel"]))
    assert own.modelled_us is other.modelled_us is None
