"""Convolutions under OxiCUDA's names: a problem, its tiles, and the kernel that they make."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from ptx.definition import Array, Written
from ptx.isa.dtypes import DType, f32
from ptx.isa.targets import Target, as_target
from ptx.kernels.conv import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD
from ptx.kernels.conv.config import ConvConfig
from ptx.kernels.conv.plan import tiled_forward_plan
from ptx.launch import Launch
from ptx.oxicuda.tile_config import TileConfig, tile_bytes
from ptx.tile.plan import TilePlan

__all__ = [
    "ConvProblem",
    "ImplicitGemmConv",
    "TileConfig",
    "gemm_k_to_filter_coords",
    "gemm_m_to_conv_coords",
    "generate_conv_backward_input_ptx",
    "generate_conv_backward_weight_ptx",
    "generate_conv_forward_ptx",
    "input_coord",
]

_PIXELS = 2**31  # an index is an s32


def generate_conv_forward_ptx(config: ConvConfig, target: Target | str = "sm_80") -> str:
    """The PTX of the forward kernel, for a launch of many pixels; its header lists the parameters.

    Raises:
      ValueError: a configuration that makes no sense.
      UnsupportedError: the target lacks an instruction.
    """
    return FORWARD.write(config, target).text


def generate_conv_backward_input_ptx(config: ConvConfig, target: Target | str = "sm_80") -> str:
    """The PTX of the gradient to the input; see `generate_conv_forward_ptx`."""
    return BACKWARD_INPUT.write(config, target).text


def generate_conv_backward_weight_ptx(config: ConvConfig, target: Target | str = "sm_80") -> str:
    """The PTX of the gradient to the weights; see `generate_conv_forward_ptx`."""
    return BACKWARD_WEIGHT.write(config, target).text


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
        """What kernels are generated from, which knows no sizes and no bias.

        Raises:
          ValueError: a field is wrong, or the layout is not that of the kernels.
        """
        self.validate()
        if self.layout != "NHWC":
            raise ValueError(
                "kernels read and write NHWC: transpose the images and set layout='NHWC'"
            )
        return self._config()

    def sizes(self) -> dict[str, int]:
        """Images n, their height h and width w, and those of the output, p and q.

        Raises:
          ValueError: a field is wrong.
        """
        (h, w), (p, q) = _two(self.in_dims, 1), _two(self.output_dims(), 1)
        return {"n": self.batch, "h": h, "w": w, "p": p, "q": q}

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


def _with_tiles(parameter: Any) -> Any:
    is_weight = isinstance(parameter, Array) and parameter.name == "weight"
    return dataclasses.replace(parameter, layout="o i j e") if is_weight else parameter


# The forward kernel, with tiles also for tiny groups.
_TILED = dataclasses.replace(
    FORWARD,
    parameters=tuple(_with_tiles(parameter) for parameter in FORWARD.parameters),
    plan=tiled_forward_plan,
)


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
        config, target = self.problem.config(), as_target(self.target)
        if self.tile_config is None:
            return tiled_forward_plan(config, target, self.problem.sizes())
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
        """Bytes of dynamic shared memory that a launch asks for, with and without a bias."""
        return self._write(bias=False).dynamic_shared

    def generate_ptx(self, *, bias: bool = False) -> str:
        """The PTX, whose header lists the parameters.

        Args:
          bias: whether the kernel adds a bias: a parameter that it does not have otherwise.

        Raises:
          ValueError: a field of the problem is wrong, or there is no such kernel.
        """
        return self._write(bias=bias).text

    def launch(self, *, bias: bool = False) -> Launch:
        """The launch of `generate_ptx(bias=bias)`, its text and dynamic shared memory included.

        Buffer 0 is the images [N, H, W, C], then follow the filters [Co, R, S, C/G], the bias [Co]
        if there is one, and the output [N, P, Q, Co].
        """
        config = self._config(bias=bias)
        shapes = list(_TILED.shapes(config, self.problem.sizes()).values())
        return _TILED.launch(config, self.target, shapes, plan=self.plan)

    def _config(self, *, bias: bool) -> ConvConfig:
        return dataclasses.replace(self.problem.config(), use_bias=bias)

    def _write(self, *, bias: bool) -> Written:
        return _TILED.write(self._config(bias=bias), self.target, plan=self.plan)


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
