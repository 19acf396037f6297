"""Convolutions under OxiCUDA's names: a problem, its tiles, and the kernel that they make."""

from __future__ import annotations

import dataclasses
import math

from ptx.isa.dtypes import DType, f32
from ptx.isa.targets import TARGETS, Target
from ptx.kernels.conv.config import ConvConfig
from ptx.kernels.conv.forward import (
    forward_dynamic_shared,
    forward_launch,
    generate_conv_forward_ptx,
)
from ptx.kernels.conv.plan import forward_plan, is_small_grid
from ptx.launch import Launch
from ptx.oxicuda.tile_config import TileConfig, tile_bytes
from ptx.tile.plan import TilePlan

__all__ = [
    "ConvProblem",
    "ImplicitGemmConv",
    "TileConfig",
    "gemm_k_to_filter_coords",
    "gemm_m_to_conv_coords",
    "input_coord",
]

_PIXELS = 2**31  # an index is an s32


@dataclasses.dataclass(frozen=True)
class ConvProblem:
    """A convolution of images of one or two dimensions, with its sizes.

    Attributes:
      batch: images; may be 0.
      in_channels, out_channels: of all groups together.
      in_dims: (height, width) of the images, or (width,).
      filter_dims, padding, stride, dilation: likewise. Both sides are padded alike.
      groups: channel groups, each with its own filters.
      input_type: of images, filters and bias: f16, bf16, f32 or f64.
      output_type: what input_type is: None means that.
      layout: "NHWC" or "NCHW"; kernels exist of NHWC.
      exact: f32 is multiplied as f32, not rounded to TF32.
    """

    batch: int
    in_channels: int
    in_dims: tuple[int, ...]
    out_channels: int
    filter_dims: tuple[int, ...]
    padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    input_type: DType = f32
    output_type: DType | None = None
    layout: str = "NHWC"
    exact: bool = False

    def validate(self) -> None:
        """Raises ValueError that names the field at fault, if one is."""
        if len(self.in_dims) not in (1, 2):
            raise ValueError(f"in_dims must be (height, width) or (width,), got {self.in_dims}")
        for name, lowest in (
            *(("in_dims", 0), ("padding", 0)),
            *(("filter_dims", 1), ("stride", 1), ("dilation", 1)),
        ):
            sizes = getattr(self, name)
            if len(sizes) != len(self.in_dims):
                raise ValueError(f"{name} must have {len(self.in_dims)} numbers, got {sizes}")
            if min(sizes) < lowest:
                raise ValueError(f"{name} must be at least {lowest}, got {sizes}")
        if self.batch < 0:
            raise ValueError(f"batch must be at least 0, got {self.batch}")
        if self.output_type not in (None, self.input_type):
            raise ValueError(
                f"output_type must be input_type, {self.input_type}, got {self.output_type}"
            )
        if self.layout not in ("NHWC", "NCHW"):
            raise ValueError(f"layout must be 'NHWC' or 'NCHW', got {self.layout!r}")
        self._config().validate()
        dims = [size + 2 * pad for size, pad in zip(self.in_dims, self.padding, strict=True)]
        if self.batch * math.prod(dims) >= _PIXELS:
            raise ValueError(
                f"batch * in_dims with padding must be below 2**31 pixels, "
                f"got {self.batch} * {tuple(dims)}"
            )

    def output_dims(self) -> tuple[int, ...]:
        """(height, width), or (width,), of the output; 0 where no filter fits.

        Raises:
          ValueError: a field is wrong.
        """
        self.validate()
        every = zip(
            self.in_dims, self.filter_dims, self.padding, self.stride, self.dilation, strict=True
        )
        return tuple(
            max(0, (size + 2 * pad - dilation * (taps - 1) - 1) // stride + 1)
            for size, taps, pad, stride, dilation in every
        )

    def conv_to_gemm_dims(self) -> tuple[int, int, int]:
        """(M, N, K): output pixels, output channels of all groups, filter volume of one group.

        Raises:
          ValueError: a field is wrong.
        """
        pixels = self.batch * math.prod(self.output_dims())
        volume = self.in_channels // self.groups * math.prod(self.filter_dims)
        return pixels, self.out_channels, volume

    def config(self) -> ConvConfig:
        """What kernels are generated from.

        Raises:
          ValueError: a field is wrong, or the layout is not that of the kernels.
        """
        pixels, _, _ = self.conv_to_gemm_dims()
        if self.layout != "NHWC":
            raise ValueError(
                "kernels read and write NHWC: transpose the images and set layout='NHWC'"
            )
        config = self._config()
        return dataclasses.replace(config, small_grid=is_small_grid(config, pixels))

    def _config(self) -> ConvConfig:
        return ConvConfig(
            self.in_channels, self.out_channels,
            *_two(self.filter_dims, 1), *_two(self.stride, 1),
            *_two(self.padding, 0), *_two(self.dilation, 1),
            groups=self.groups, float_type=self.input_type, exact=self.exact,
        )  # fmt: skip


def _two(sizes: tuple[int, ...], missing: int) -> tuple[int, ...]:
    """Sizes of two dimensions: images of one have one row."""
    return (missing,) * (2 - len(sizes)) + tuple(sizes)


@dataclasses.dataclass(frozen=True)
class ImplicitGemmConv:
    """The forward kernel of a problem on a target.

    Attributes:
      problem: what it computes.
      target: GPU, for example "sm_80".
      tile_config: tiles; None are those that fit the problem best.
    """

    problem: ConvProblem
    target: Target | str = "sm_80"
    tile_config: TileConfig | None = None

    @property
    def plan(self) -> TilePlan:
        """The tiles as the kernel has them; ValueError if there is no such kernel."""
        config, target = self.problem.config(), _target(self.target)
        if self.tile_config is None:
            return forward_plan(config, target)
        return self.tile_config.plan(config, target)

    @property
    def kernel_name(self) -> str:
        """Name of the entry: tiles and type."""
        tiles = self.tile_config or TileConfig.of_plan(self.plan)
        size = f"{tiles.tile_m}x{tiles.tile_n}x{tiles.tile_k}"
        return f"implicit_gemm_conv_{size}_{self.problem.input_type}"

    @property
    def smem_input_elements(self) -> int:
        """Elements of images in shared memory: 0 where they go straight into registers."""
        dtype = self.problem.input_type
        return tile_bytes(self.plan, dtype)[0] // dtype.bytes

    @property
    def smem_filter_elements(self) -> int:
        """Elements of filters in shared memory, of all stages."""
        dtype = self.problem.input_type
        return tile_bytes(self.plan, dtype)[1] // dtype.bytes

    @property
    def workspace_bytes(self) -> int:
        """0: the kernel has no other memory than its operands and the output."""
        return 0

    @property
    def dynamic_shared(self) -> int:
        """Bytes of dynamic shared memory that a launch asks for."""
        target = _target(self.target)
        return forward_dynamic_shared(self.problem.config(), target, plan=self.plan)

    def generate_ptx(self) -> str:
        """The PTX; `generate_conv_forward_ptx` says which parameters it has.

        Raises:
          ValueError: a field of the problem is wrong, or there is no such kernel.
        """
        config = self.problem.config()
        return generate_conv_forward_ptx(config, self.target, plan=self.plan)

    def launch(self, *, bias: bool) -> Launch:
        """The launch: `Address` 0 is the images, then filters, bias if there is one, and output."""
        problem, config = self.problem, self.problem.config()
        x = (problem.batch, *_two(problem.in_dims, 1), problem.in_channels)
        y = (problem.batch, *_two(problem.output_dims(), 1), problem.out_channels)
        weight = (problem.out_channels, config.taps, config.in_channels_per_group)
        shapes = [x, weight, *([(problem.out_channels,)] if bias else []), y]
        return forward_launch(config, _target(self.target), shapes, plan=self.plan)


def gemm_m_to_conv_coords(m: int, out_h: int, out_w: int) -> tuple[int, int, int]:
    """(image, row, column) of output pixel m, of m = (image * out_h + row) * out_w + column."""
    line, column = divmod(m, out_w)
    return (*divmod(line, out_h), column)


def gemm_k_to_filter_coords(k: int, filter_h: int, filter_w: int) -> tuple[int, int, int]:
    """(channel, row, column) of k = (channel * filter_h + row) * filter_w + column.

    So a filter [Co, C, R, S] lies in memory. The kernels' own order has channels innermost.
    """
    line, column = divmod(k, filter_w)
    return (*divmod(line, filter_h), column)


def input_coord(
    out_pos: int, filter_pos: int, pad: int, stride: int, dilation: int, input_size: int
) -> int | None:
    """Row, or column, of the image that a tap of an output pixel reads; None is padding."""
    position = out_pos * stride - pad + filter_pos * dilation
    return position if 0 <= position < input_size else None


def _target(target: Target | str) -> Target:
    return TARGETS[target] if isinstance(target, str) else target
