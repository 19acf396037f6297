"""The gradient to the input without atomics: values, bits that repeat, and the switch."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec
from support.deform_conv_checks import STRANGE_OFFSETS, assert_has_kernels, float64_reference
from support.helpers import assert_close, astype
from support.places import PRECISIONS

import oxijax
import ptx
from oxijax._core import config as _config
from oxijax.testing import CASES, DeformConvCase, emulate_gpu
from ptx.emulator import Buffer, EmulatorError, launch
from ptx.isa.assembler import assemble
from ptx.kernels.deform_conv import BACKWARD_INPUT_GATHER, DeformConvConfig

TARGETS = ("sm_75", "sm_80", "sm_90")
# In an order of their own: not the pairs that the scattering kernel is tested with.
COMBINATIONS = [(p, t) for t in reversed(TARGETS) for p in reversed(PRECISIONS)]
SAMPLE = (
    *("v2", "v1", "groups", "offset-groups", "groups-and-offset-groups", "depthwise", "strided"),
    *("dilated", "uneven-padding", "even-kernel", "one-pixel", "one-channel", "batch-33", "wide"),
    "wide-narrow-offset-groups",
)
FLAGS = ("--xla_gpu_deterministic_ops", "--xla_gpu_exclude_nondeterministic_ops")


def gradient(case, precision=None):
    """The function of operands and grad_y that returns the gradient to x, of a case."""

    def run(operands, grad_y):
        def y(x):
            return oxijax.deform_conv(x, *operands[1:], precision=precision, **case.options)

        return jax.vjp(y, operands[0])[1](grad_y)[0]

    return run


def expected_gradient(case, operands, grad_y):
    """The gradient to x in float64."""
    return float64_reference(operands, grad_y, **case.options)["dx"]


def gathered(case, operands, grad_y, target="sm_90", schedule=None, precision=None):
    """The gradient to x by the kernel without atomics, and by nothing else."""
    with emulate_gpu(target, schedule=schedule), oxijax.config.deterministic_mode():
        compiled = jax.jit(gradient(case, precision)).lower(operands, grad_y).compile()
        if grad_y.size:
            assert_has_kernels(compiled.as_text(), ["backward_input_gather"])
        return np.asarray(compiled(operands, grad_y))


def with_offset(operands, offset):
    return (operands[0], np.asarray(offset, operands[1].dtype), *operands[2:])


def check(name, precision, target):
    case = CASES[name]
    dtype, precision, tolerance = PRECISIONS[precision]
    operands, grad_y = astype(case.operands(), dtype), case.grad_y().astype(dtype)
    result = gathered(case, operands, grad_y, target, len(name), precision)
    assert result.dtype == dtype
    assert_close(result, expected_gradient(case, operands, grad_y), tolerance)


@pytest.mark.spread(1, rest="proof")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("name", "combination"), list(zip(SAMPLE, itertools.cycle(COMBINATIONS), strict=False))
)
def test_values(name, combination):
    check(name, *combination)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("precision", "target"), COMBINATIONS)
@pytest.mark.parametrize("name", CASES)
def test_values_everywhere(name, precision, target):
    check(name, precision, target)


class TestBits:
    """In a random order of the warps, the same bits."""

    case = DeformConvCase("bits", (1, 9, 8, 6), 5, kernel_size=(2, 2), offset_groups=3)

    def results(self, dtype, target, deterministic):
        """The gradient in five orders."""
        operands = astype(self.case.operands(), dtype)
        grad_y = self.case.grad_y().astype(dtype)
        run = gradient(self.case, "highest")
        results = []
        with oxijax.config.deterministic_mode(deterministic):
            for schedule in range(5):
                with emulate_gpu(target, schedule=schedule):
                    results.append(np.asarray(jax.jit(run)(operands, grad_y)))
        return {result.tobytes() for result in results}

    @pytest.mark.spread(1, rest="proof")
    @pytest.mark.parametrize(
        ("dtype", "target"), [("float32", "sm_75"), ("float16", "sm_80"), ("bfloat16", "sm_90")]
    )
    def test_are_the_same(self, dtype, target):
        assert len(self.results(dtype, target, True)) == 1

    def test_are_not_with_atomics(self):
        assert len(self.results("float32", "sm_90", False)) > 1


class TestOffsets:
    @pytest.fixture
    def case(self):
        return CASES["offset-groups"]

    @pytest.mark.spread(4)
    @pytest.mark.parametrize("value", STRANGE_OFFSETS)
    def test_strange_ones_as_the_reference(self, case, value):
        operands, grad_y = astype(case.operands(), jnp.float32), case.grad_y()
        offset = np.array(operands[1])
        offset[0, 2, 3, 5] = offset[1, 4, 1, 30] = value
        operands = with_offset(operands, offset)
        result = gathered(case, operands, grad_y, precision="highest")
        assert np.isfinite(result).all()
        assert_close(result, expected_gradient(case, operands, grad_y), 2e-6)

    def test_all_of_them_are_nan(self, case):
        operands, grad_y = astype(case.operands(), jnp.float32), case.grad_y()
        operands = with_offset(operands, jnp.full_like(operands[1], jnp.nan))
        assert not np.any(gathered(case, operands, grad_y))

    @pytest.mark.parametrize("precision", ["exact", "float16"])
    def test_all_samples_between_the_same_pixels(self, precision):
        """Lists as long as can be; in f16 their sums are over 65504, and the results are not."""
        case = dataclasses.replace(CASES["v2"], x=(1, 16, 16, 3), out_channels=4)
        dtype, precision, tolerance = PRECISIONS[precision]
        operands = astype(case.operands(), dtype)
        row, column = np.arange(16)[:, None, None], np.arange(16)[None, :, None]
        tap_row, tap_column = np.divmod(np.arange(9), 3)
        to = (4.3 + 1 - row - tap_row, 9.6 + 1 - column - tap_column)
        offset = np.stack(np.broadcast_arrays(*to), axis=-1).reshape(1, 16, 16, 18)
        operands = with_offset(operands, offset)
        operands = (*operands[:2], operands[2] * 0.01, *operands[3:])
        grad_y = (1000 + case.grad_y()).astype(dtype)
        assert 1000 * 0.7 * 0.6 * np.asarray(operands[3], float).sum((0, 1, 2)).min() > 65504
        expected = expected_gradient(case, operands, grad_y)
        assert np.count_nonzero(expected.any(axis=-1)) == 4
        result = gathered(case, operands, grad_y, "sm_80", precision=precision)
        assert_close(result, expected, tolerance)


@pytest.mark.parametrize(("offset_dtype", "mask_dtype"), [("float16", "float32"), ("float32",) * 2])
def test_dtypes_of_offset_and_mask(offset_dtype, mask_dtype):
    case = CASES["v2"]
    operands = list(astype(case.operands(), jnp.bfloat16))
    operands[1], operands[3] = operands[1].astype(offset_dtype), operands[3].astype(mask_dtype)
    grad_y = case.grad_y().astype(jnp.bfloat16)
    result = gathered(case, operands, grad_y)
    assert_close(result, expected_gradient(case, operands, grad_y), 8e-3)


def test_empty_batch():
    case = CASES["v2"]
    x, offset, weight, mask, bias = astype(case.operands(), jnp.float32)
    operands, grad_y = (x[:0], offset[:0], weight, mask[:0], bias), case.grad_y()[:0]
    assert gathered(case, operands, grad_y).shape == (0, *case.x[1:])


@pytest.mark.parametrize("check_vma", [False, True])
def test_in_shard_map(check_vma):
    case = CASES["offset-groups"]
    operands, grad_y = astype(case.operands(), jnp.float32), case.grad_y()
    mesh = jax.make_mesh((2,), ("batch",), axis_types=(AxisType.Auto,))
    sharded, everywhere = PartitionSpec("batch"), PartitionSpec()
    parallel = jax.shard_map(
        gradient(case, "highest"),
        mesh=mesh,
        in_specs=((sharded, sharded, everywhere, sharded, everywhere), sharded),
        out_specs=sharded,
        check_vma=check_vma,
    )
    with emulate_gpu(), oxijax.config.deterministic_mode():
        result = jax.jit(parallel)(operands, grad_y)
    assert_close(result, expected_gradient(case, operands, grad_y), 2e-6)


class TestSwitch:
    @pytest.fixture(autouse=True)
    def restored(self):
        jax.devices()  # XLA reads its flags now, and not those that the tests set
        _config.xla_is_deterministic.cache_clear()
        yield
        oxijax.config.deterministic = None
        _config.xla_is_deterministic.cache_clear()

    @pytest.fixture
    def is_gathered(self):
        """Whether a program for the GPU, compiled now, has the kernel without atomics."""
        case = CASES["kernel-1x1"]
        arguments = astype(case.operands(), jnp.float32), case.grad_y()
        run = jax.jit(gradient(case))

        def ask():
            text = run.trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
            gathers = "deform_conv_backward_input_gather" in text
            assert gathers != ("deform_conv_backward_input\\22" in text)
            return gathers

        return ask

    def test_is_off_by_default(self, is_gathered):
        assert oxijax.config.deterministic is None
        assert not is_gathered()

    @pytest.mark.parametrize(
        ("images", "channels", "dtype", "chosen"),
        [
            *((8, 128, "bfloat16", True), (8, 128, "float16", True), (8, 128, "float32", False)),
            *((8, 32, "bfloat16", False), (1, 128, "float16", False)),
        ],
    )
    def test_is_chosen_where_it_is_faster(self, images, channels, dtype, chosen):
        """Where nobody has said anything: for images and groups that are large enough."""
        x = jax.ShapeDtypeStruct((images, 100, 168, channels), dtype)
        offset = jax.ShapeDtypeStruct((images, 100, 168, 18), dtype)
        weight = jax.ShapeDtypeStruct((3, 3, channels, 128), dtype)

        def loss(x, offset, weight):
            return oxijax.deform_conv(x, offset, weight).sum()

        def gathers():
            traced = jax.jit(jax.grad(loss)).trace(x, offset, weight)
            text = traced.lower(lowering_platforms=("cuda",)).as_text()
            found = "deform_conv_backward_input_gather" in text
            assert found != ("deform_conv_backward_input\\22" in text)
            return found

        assert gathers() == chosen
        with oxijax.config.deterministic_mode(False):
            assert not gathers()
        with oxijax.config.deterministic_mode():
            assert gathers()

    def test_is_not_chosen_for_more_cells_than_it_can_count(self):
        """Which only those get an error for who have asked for it."""
        images = 2**29 // (104 * 172)  # of nine taps: 2**32 cells would be too many
        x = jax.ShapeDtypeStruct((images, 100, 168, 64), jnp.bfloat16)
        offset = jax.ShapeDtypeStruct((images, 100, 168, 18), jnp.bfloat16)
        weight = jax.ShapeDtypeStruct((3, 3, 64, 64), jnp.bfloat16)

        def lowered():
            gradient = jax.jit(jax.grad(lambda *operands: oxijax.deform_conv(*operands).sum()))
            return gradient.trace(x, offset, weight).lower(lowering_platforms=("cuda",)).as_text()

        assert "deform_conv_backward_input_gather" not in lowered()
        with oxijax.config.deterministic_mode(), pytest.raises(ValueError, match="split the batch"):
            lowered()

    def test_recompiles_what_is_compiled(self, is_gathered):
        answers = [is_gathered()]
        for value in (True, False, None):
            oxijax.config.deterministic = value
            answers.append(is_gathered())
        assert answers == [False, True, False, False]

    def test_keeps_what_is_compiled(self):
        traces = []

        @jax.jit
        def function(x):
            traces.append(x)
            return x

        for _ in range(2):
            function(1.0)
            with oxijax.config.deterministic_mode():
                function(1.0)
        assert len(traces) == 2

    def test_block(self, is_gathered):
        oxijax.config.deterministic = True
        with oxijax.config.deterministic_mode(False):
            assert not is_gathered()
            with oxijax.config.deterministic_mode():
                assert is_gathered()
            assert not is_gathered()
            with oxijax.config.deterministic_mode(None):
                assert oxijax.config.deterministic is None
                assert not is_gathered()
        assert is_gathered()
        assert repr(oxijax.config) == "oxijax.config(deterministic=True)"

    @pytest.mark.parametrize("value", [1, "true", 0.0])
    def test_wrong_values(self, value):
        with pytest.raises(TypeError, match=r"True, False, or None .* got "):
            oxijax.config.deterministic = value
        with pytest.raises(TypeError, match="got "), oxijax.config.deterministic_mode(value):
            pass
        assert oxijax.config.deterministic is None

    def test_wrong_name(self):
        with pytest.raises(AttributeError):
            oxijax.config.determinstic = True  # pyright: ignore[reportAttributeAccessIssue]

    @pytest.mark.parametrize("flag", FLAGS)
    def test_xla_flags(self, flag, is_gathered, monkeypatch):
        monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to=/nowhere {flag}=true")
        assert is_gathered()
        oxijax.config.deterministic = False
        assert not is_gathered()

    @pytest.mark.parametrize(
        ("flags", "expected"),
        [
            ("", False),
            ("  ", False),
            (FLAGS[0], True),
            (f"{FLAGS[0]}=True", True),
            (f"{FLAGS[0]}=1 ", True),
            (f"{FLAGS[0]}='true'", True),
            (f"{FLAGS[0]}=false", False),
            (f"{FLAGS[0]}=0", False),
            (f"{FLAGS[1]} {FLAGS[0]}=false", True),
            (f"{FLAGS[1]}=true\n{FLAGS[1]}=false", False),
            (f"{FLAGS[0]}_of_another_name", False),
            (f'--xla_dump_to="a {FLAGS[0]} b"', False),
            (f'--xla_dump_to="a b" {FLAGS[0]}', True),
        ],
    )
    def test_reads_flags_as_xla_does(self, flags, expected, monkeypatch):
        monkeypatch.setenv("XLA_FLAGS", flags)
        assert _config.xla_is_deterministic() == expected

    def test_flags_in_a_file(self, tmp_path, monkeypatch):
        file = tmp_path / "flags"
        file.write_text(f"--xla_dump_to=/nowhere\n{FLAGS[1]}=true\n")
        monkeypatch.setenv("XLA_FLAGS", str(file))
        assert _config.xla_is_deterministic()

    def test_no_flags(self, monkeypatch):
        monkeypatch.delenv("XLA_FLAGS")
        assert not _config.xla_is_deterministic()


LAYERS = {
    "wide": DeformConvConfig(128, 128),
    "odd": DeformConvConfig(5, 7),
    "offset-groups": DeformConvConfig(64, 64, offset_groups=16),
    "groups": DeformConvConfig(64, 64, groups=4, offset_groups=2),
}


@pytest.mark.spread(2, rest="proof")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("layer", LAYERS)
def test_spills_nothing(layer, target):
    for dtype, exact in [
        ("f16", False),
        ("bf16", False),
        ("f32", False),
        ("f32", True),
        ("f64", False),
    ]:
        config = dataclasses.replace(LAYERS[layer], float_type=getattr(ptx, dtype), exact=exact)
        text = BACKWARD_INPUT_GATHER.write(config, target).text
        (kernel,) = assemble(text, target).values()
        name = f"deformable_conv_backward_input_gather_{dtype}_3x3"
        assert (kernel.kernel, kernel.spills, kernel.local_bytes) == (name, 0, 0)


def test_addresses_have_64_bits():
    """A sample whose gradients lie beyond 2^32 bytes is looked for there."""
    config = DeformConvConfig(8, 64, kernel_h=1, kernel_w=1)
    written = BACKWARD_INPUT_GATHER.write(config, "sm_80")
    sample = 2**30 // 64 + 3
    buffers = [
        np.array([0] * 13 + [1] * 13, np.uint32),  # one image of one pixel, in the cell 12
        np.array([sample], np.uint32),
        *(np.zeros(n, np.float32) for n in (4, 8 * 64, 64, 8)),
    ]
    arguments = [*map(Buffer, buffers), *(np.uint32(n) for n in (1, 1, 1, 2**30))]
    with pytest.raises(EmulatorError) as error:
        launch(
            written.text, grid=1, block=256, arguments=arguments,
            dynamic_shared=written.dynamic_shared,
        )  # fmt: skip
    assert str(4 * 64 * sample) in str(error.value)
