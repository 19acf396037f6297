"""Statements of OxiCUDA's `deformable.rs` about the names that `ptx` has from it."""

import dataclasses
import re

import pytest

import ptx
from oxijax.__main__ import main
from ptx import (
    DeformableConvConfig,
    bf16,
    f16,
    f32,
    f64,
    generate_deformable_conv_backward_input_ptx,
    generate_deformable_conv_backward_offset_ptx,
    generate_deformable_conv_backward_weight_ptx,
    generate_deformable_conv_forward_ptx,
    registry,
    u32,
)
from ptx.kernels.deform_conv import CONFIGS

CONFIG = DeformableConvConfig(
    in_channels=64, out_channels=64, kernel_h=3, kernel_w=3, stride_h=1, stride_w=1, pad_h=1,
    pad_w=1, dilation_h=1, dilation_w=1, offset_groups=1, use_modulation=True, float_type=f32,
)  # fmt: skip
GENERATORS = {
    "forward": generate_deformable_conv_forward_ptx,
    "backward_input": generate_deformable_conv_backward_input_ptx,
    "backward_offset": generate_deformable_conv_backward_offset_ptx,
    "backward_weight": generate_deformable_conv_backward_weight_ptx,
}
# Pointers that a kernel cannot do without, and those that come with a mask.
POINTERS = {
    "forward": ({"x", "offset", "weight", "y"}, {"mask"}),
    "backward_input": ({"grad_y", "offset", "weight", "grad_x"}, {"mask"}),
    "backward_offset": ({"grad_y", "x", "offset", "weight", "grad_offset"}, {"mask", "grad_mask"}),
    "backward_weight": ({"grad_y", "x", "offset"}, {"mask"}),
}


def changed(**fields) -> DeformableConvConfig:
    return dataclasses.replace(CONFIG, **fields)


# ---- configuration


def test_what_a_configuration_is_of():
    CONFIG.validate()
    for dtype in (f32, f16):
        changed(float_type=dtype).validate()
    assert DeformableConvConfig(64, 64) == CONFIG


@pytest.mark.parametrize(
    "name",
    [
        *("kernel_h", "kernel_w", "stride_h", "stride_w", "dilation_h", "dilation_w"),
        *("in_channels", "out_channels", "offset_groups"),
    ],
)
def test_nothing_may_be_zero(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        changed(**{name: 0}).validate()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"offset_groups": 3}, "offset_groups=3 must divide in_channels=64"),
        ({"groups": 3}, "groups=3 must divide in_channels=64"),
        ({"groups": 64, "out_channels": 96}, "groups=64 must divide out_channels=96"),
        ({"pad_h": -1}, "pad_h must be at least 0, got -1"),
        ({"pad_w": -1}, "pad_w must be at least 0, got -1"),
        ({"float_type": u32}, "float_type must be f16, bf16, f32 or f64, got u32"),
        ({"float_type": None}, "float_type must be f16, bf16, f32 or f64, got None"),
        ({"offset_type": u32}, "offset_type must be f16, bf16, f32 or f64, got u32"),
        ({"mask_type": u32}, "mask_type must be f16, bf16, f32 or f64, got u32"),
    ],
)
def test_what_does_not_fit(fields, message):
    with pytest.raises(ValueError, match=message):
        changed(**fields).validate()


@pytest.mark.parametrize("kernel", GENERATORS)
def test_generators_validate(kernel):
    with pytest.raises(ValueError, match="kernel_h"):
        GENERATORS[kernel](changed(kernel_h=0))


@pytest.mark.parametrize(
    ("fields", "in_size", "out_size"),
    [
        ({}, (16, 16), (16, 16)),
        ({}, (1, 1), (1, 1)),
        ({}, (7, 30), (7, 30)),
        ({"stride_h": 2, "stride_w": 2}, (16, 16), (8, 8)),
        ({"stride_h": 2, "stride_w": 3}, (16, 16), (8, 6)),
        ({"dilation_h": 2, "dilation_w": 2, "pad_h": 2, "pad_w": 2}, (16, 16), (16, 16)),
        (
            {
                **{"stride_h": 2, "stride_w": 2, "dilation_h": 2, "dilation_w": 2},
                **{"pad_h": 2, "pad_w": 2},
            },
            (16, 16),
            (8, 8),
        ),
        ({"pad_h": 0, "pad_w": 0}, (16, 16), (14, 14)),
        ({"pad_h": 0, "pad_w": 0}, (3, 3), (1, 1)),
        ({"pad_h": 0, "pad_w": 0}, (2, 2), (0, 0)),
        ({"pad_h": 0}, (2, 2), (0, 2)),
        ({"kernel_h": 5, "kernel_w": 5, "pad_h": 2, "pad_w": 2}, (16, 16), (16, 16)),
        ({"stride_h": 0, "stride_w": 0}, (16, 16), (16, 16)),  # as if it were 1
    ],
)
def test_output_size(fields, in_size, out_size):
    assert changed(**fields).output_size(*in_size) == out_size


@pytest.mark.parametrize(
    ("fields", "offsets", "masks"),
    [
        ({}, 18, 9),
        ({"offset_groups": 4}, 72, 36),
        ({"kernel_h": 5, "kernel_w": 2}, 20, 10),
        ({"use_modulation": False}, 18, 9),
    ],
)
def test_channels_of_offset_and_mask(fields, offsets, masks):
    config = changed(**fields)
    assert (config.offset_channels, config.mask_channels) == (offsets, masks)


@pytest.mark.parametrize(("groups", "channels"), [(1, 64), (4, 16), (64, 1), (0, 0)])
def test_channels_per_offset_group(groups, channels):
    assert changed(offset_groups=groups).channels_per_offset_group == channels


@pytest.mark.parametrize(
    ("fields", "height", "width"),
    [
        ({}, 3, 3),
        ({"dilation_h": 2, "dilation_w": 3}, 5, 7),
        ({"kernel_h": 1, "dilation_h": 9}, 1, 3),
        ({"kernel_h": 0}, 1, 3),
    ],
)
def test_effective_kernel(fields, height, width):
    config = changed(**fields)
    assert (config.effective_kernel_h, config.effective_kernel_w) == (height, width)


# ---- PTX


def entry(text: str) -> tuple[str, set[str]]:
    """The name of the kernel of a text, and the names of its parameters."""
    found = re.search(r"\.visible \.entry (\w+)\((.*?)\)", text, re.S)
    assert found is not None
    return found[1], set(re.findall(r"\.param \.u64 (\w+)[,\s]", found[2] + "\n"))


@pytest.mark.parametrize("kernel", GENERATORS)
@pytest.mark.parametrize("dtype", [f32, f16, bf16, f64])
def test_entry_names(kernel, dtype):
    for fields in ({}, {"kernel_h": 5, "pad_h": 2}):
        config = changed(float_type=dtype, **fields)
        name, _ = entry(GENERATORS[kernel](config))
        assert name == f"deformable_conv_{kernel}_{dtype}_{config.kernel_h}x3"


@pytest.mark.parametrize("kernel", GENERATORS)
def test_parameters(kernel):
    """Those of the document, by the names of operands; without modulation there is no mask."""
    always, with_mask = POINTERS[kernel]
    text = GENERATORS[kernel](CONFIG)
    assert entry(text)[1] >= always | with_mask
    plain = GENERATORS[kernel](changed(use_modulation=False))
    assert entry(plain)[1] >= always
    assert not entry(plain)[1] & with_mask
    for size in ("batch_size", "in_h", "in_w", "out_h", "out_w"):
        assert f".param .u32 {size}" in text
    assert "bias" in entry(GENERATORS["forward"](changed(use_bias=True)))[1]
    assert "bias" not in entry(GENERATORS["forward"](CONFIG))[1]


@pytest.mark.parametrize("kernel", GENERATORS)
@pytest.mark.parametrize(
    "fields", [{}, {"offset_groups": 4}, {"offset_groups": 64}, {"float_type": f16}]
)
def test_what_kernels_do(kernel, fields):
    text = GENERATORS[kernel](changed(**fields))
    assert "ld.global" in text  # the offsets
    assert "cvt.rmi.f32.f32" in text  # their floor, in f32 whatever the type of the images
    assert ("st.global" in text) == (kernel != "backward_input")


@pytest.mark.parametrize("dtype", [f32, f16])
def test_the_scatter_is_atomic(dtype):
    """One addition to memory in f32, of halves too: no plain store, no compare-and-swap loop."""
    text = generate_deformable_conv_backward_input_ptx(changed(float_type=dtype))
    assert "red.global.add.f32" in text
    assert "st.global" not in text
    assert "atom" not in text


@pytest.mark.parametrize("kernel", GENERATORS)
def test_targets(kernel):
    assert ".target sm_80\n" in GENERATORS[kernel](CONFIG)
    for target in ("sm_75", "sm_90", ptx.TARGETS["sm_120"]):
        assert f".target {target}\n" in GENERATORS[kernel](CONFIG, target)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [*GENERATORS, "backward_input_gather"])
def test_every_configuration_is_written(kernel):
    """For a target with all paths; that each assembles is what `python -m oxijax check` says."""
    registered = registry.KERNELS[f"deform_conv_{kernel}"]
    for config in registered.configs:
        found, _ = entry(registered.write_named(config, "sm_90").text)
        assert found.startswith(f"deformable_conv_{kernel}_")


# ---- the command


@pytest.mark.parametrize("kernel", [*GENERATORS, "backward_input_gather"])
def test_ptx_command(kernel, capsys):
    for config in ("R50-c3/bf16", "odd-channels/f64"):
        command = ["ptx", f"deform_conv_{kernel}", "--config", config, "--target", "sm_90"]
        assert main(command) == 0
        name, _ = entry(capsys.readouterr().out)
        assert name == f"deformable_conv_{kernel}_{config.rpartition('/')[2]}_3x3"


def test_ptx_command_lists_them(capsys):
    assert main(["ptx"]) == 0
    listed = capsys.readouterr().out.splitlines()
    for kernel in (*GENERATORS, "backward_input_gather"):
        line = next(line for line in listed if line.startswith(f"deform_conv_{kernel} "))
        assert line.endswith(f" {len(CONFIGS)} configurations")
        assert main(["ptx", f"deform_conv_{kernel}", "--list"]) == 0
        assert capsys.readouterr().out.split() == [*CONFIGS]
