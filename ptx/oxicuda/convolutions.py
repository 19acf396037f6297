"""Convolutions under OxiCUDA's names: problems, tiles, and the kernels that they make.

After OxiCUDA's `implicit_gemm.rs` and `deformable.rs`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator

from ptx.checks import check_at_least
from ptx.definition import In, Written
from ptx.isa.dtypes import DType, f32
from ptx.isa.targets import Target, as_target
from ptx.kernels import conv, deform_conv
from ptx.kernels.conv.config import ConvConfig
from ptx.kernels.conv.plan import tiled_forward_plan
from ptx.kernels.deform_conv import DeformConvConfig
from ptx.launch import Launch
from ptx.tile.layout import Layout
from ptx.tile.plan import TilePlan, atom_of, streams
from ptx.tile.shared import STAGES
from ptx.tile.stream import ROW_BYTES, StreamedTile

__all__ = [
    "ConvConfig",
    "ConvProblem",
    "DeformableConvConfig",
    "ImplicitGemmConv",
    "TileConfig",
    "gemm_k_to_filter_coords",
    "gemm_m_to_conv_coords",
    "generate_conv_backward_input_ptx",
    "generate_conv_backward_weight_ptx",
    "generate_conv_forward_ptx",
    "generate_deformable_conv_backward_input_ptx",
    "generate_deformable_conv_backward_offset_ptx",
    "generate_deformable_conv_backward_weight_ptx",
    "generate_deformable_conv_forward_ptx",
    "input_coord",
]

DeformableConvConfig = DeformConvConfig


def generate_deformable_conv_forward_ptx(
    config: DeformConvConfig, target: Target | str = "sm_80"
) -> str:
    """The PTX of the forward kernel; its header has the parameters.

    Raises:
      ValueError: a configuration that makes no sense.
      UnsupportedError: the target lacks an instruction.
    """
    return deform_conv.FORWARD.write(config, target).text


def generate_deformable_conv_backward_input_ptx(
    config: DeformConvConfig, target: Target | str = "sm_80"
) -> str:
    """The PTX of the gradient to the images; raises as `generate_deformable_conv_forward_ptx`."""
    return deform_conv.BACKWARD_INPUT.write(config, target).text


def generate_deformable_conv_backward_offset_ptx(
    config: DeformConvConfig, target: Target | str = "sm_80"
) -> str:
    """The PTX of the gradients to offset and mask; raises as the forward one."""
    return deform_conv.BACKWARD_OFFSET.write(config, target).text


def generate_deformable_conv_backward_weight_ptx(
    config: DeformConvConfig, target: Target | str = "sm_80"
) -> str:
    """The PTX of the gradient to the weights, in parts; raises as the forward one."""
    return deform_conv.BACKWARD_WEIGHT.write(config, target).text


def generate_conv_forward_ptx(config: ConvConfig, target: Target | str = "sm_80") -> str:
    """The PTX of the forward kernel, for a launch of many pixels; its header lists the parameters.

    Raises:
      ValueError: a configuration that makes no sense.
      UnsupportedError: the target lacks an instruction.
    """
    return conv.FORWARD.write(config, target).text


def generate_conv_backward_input_ptx(config: ConvConfig, target: Target | str = "sm_80") -> str:
    """The PTX of the gradient to the input; see `generate_conv_forward_ptx`."""
    return conv.BACKWARD_INPUT.write(config, target).text


def generate_conv_backward_weight_ptx(config: ConvConfig, target: Target | str = "sm_80") -> str:
    """The PTX of the gradient to the weights; see `generate_conv_forward_ptx`."""
    return conv.BACKWARD_WEIGHT.write(config, target).text


@dataclasses.dataclass(frozen=True)
class ConvProblem:
    """A convolution of images of one or two dimensions, with its sizes.

    Attributes:
      batch: the number of images; may be 0.
      in_channels, out_channels: channels of all groups together.
      in_dims: (height, width) of the images, or (width,).
      filter_dims, padding, stride, dilation: likewise. Both sides are padded alike.
      groups: channel groups, each with its own filters.
      input_type: the type of images, filters and bias: f16, bf16, f32 or f64.
      output_type: the same as input_type; None means that.
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
        for name in ("in_dims", "padding", "filter_dims", "stride", "dilation"):
            sizes, lowest = getattr(self, name), 0 if name in ("in_dims", "padding") else 1
            if len(sizes) != len(self.in_dims):
                raise ValueError(f"{name} must have {len(self.in_dims)} numbers, got {sizes}")
            if min(sizes) < lowest:
                raise ValueError(f"{name} must be at least {lowest}, got {sizes}")
        check_at_least(0, batch=self.batch)
        if self.output_type not in (None, self.input_type):
            raise ValueError(
                f"output_type must be input_type, {self.input_type}, got {self.output_type}"
            )
        if self.layout not in ("NHWC", "NCHW"):
            raise ValueError(f"layout must be 'NHWC' or 'NCHW', got {self.layout!r}")
        self._config().validate()
        dims = tuple(size + 2 * pad for size, pad in zip(self.in_dims, self.padding, strict=True))
        if self.batch * math.prod(dims) >= 2**31:  # an index is an s32
            raise ValueError(
                "batch * in_dims with padding must be below 2**31 pixels, "
                f"got {self.batch} * {dims}"
            )

    def output_dims(self) -> tuple[int, ...]:
        """(height, width), or (width,), of the output; 0 where no filter fits.

        Raises:
          ValueError: a field is wrong.
        """
        self.validate()
        fields = (self.in_dims, self.filter_dims, self.padding, self.stride, self.dilation)
        return tuple(
            max(0, (size + 2 * pad - dilation * (taps - 1) - 1) // stride + 1)
            for size, taps, pad, stride, dilation in zip(*fields, strict=True)
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
        """The configuration that kernels are generated from, without sizes and bias.

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


@dataclasses.dataclass(frozen=True)
class TileConfig:
    """The shares of a product that blocks and warps have.

    With two stages, images and filters go through shared memory; with more, filters do, that many
    steps ahead, and images go straight into the registers of the warp that multiplies them.

    Attributes:
      tile_m, tile_n, tile_k: output pixels and output channels of a block, and a step along K.
      warp_m, warp_n: a warp's part of the tile. Without tensor cores it says how many warps there
        are, and each thread has elements spread over the tile.
      stages: stages of the pipeline.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    warp_m: int
    warp_n: int
    stages: int

    @staticmethod
    def default_conv(target: Target | str) -> TileConfig:
        """Tiles that every problem can have, of which two blocks in f64 fit on an SM."""
        if as_target(target).supports("sm_80"):
            return TileConfig(64, 64, 16, 32, 32, 2)
        return TileConfig(64, 32, 16, 32, 16, 2)

    @staticmethod
    def of_plan(plan: TilePlan) -> TileConfig:
        """The tiles of a plan."""
        warp_m, warp_n = plan.m // plan.warps[0], plan.n // plan.warps[1]
        return TileConfig(plan.m, plan.n, plan.k, warp_m, warp_n, plan.stages)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (self.tile_m // self.warp_m) * (self.tile_n // self.warp_n)

    def validate(self) -> None:
        """Raises ValueError that names the field at fault, if one is."""
        self._check(self._own_requirements())

    def plan(self, config: ConvConfig, target: Target) -> TilePlan:
        """These tiles for the forward kernel of a convolution.

        Raises:
          ValueError: there is no such kernel; the message says what is possible.
        """
        self.validate()
        self._check(self._requirements(config, target))
        warps = (self.tile_m // self.warp_m, self.tile_n // self.warp_n)
        streamed = self.stages > STAGES
        plan = TilePlan(self.tile_m, self.tile_n, self.tile_k, warps, self.stages, streamed)
        room = target.shared_per_block if streamed else target.static_shared_per_block
        width = config.float_type.bytes
        windows = 16 * self.tile_m  # of rows
        need = width * sum(_tile_elements(plan, config.float_type)) + windows
        sums = self.tile_m * self.tile_n // self.threads * max(1, width // 4)
        # Half of a thread's registers for sums: the rest is needed to make the operands.
        most = min(256, target.registers_per_sm // self.threads) // 2
        self._check(
            [
                (need <= room, f"{room} bytes of shared memory, not {need},"),
                (sums <= most, f"{most} registers of sums in a thread, not {sums},"),
            ]
        )
        two_blocks = 2 * sums * 2 * self.threads <= target.registers_per_sm
        return plan if two_blocks else dataclasses.replace(plan, min_blocks=1)

    def _own_requirements(self) -> Iterator[tuple[bool, str]]:
        """What tiles must have, and whether these have it, on any target."""
        for field in dataclasses.fields(self):
            lowest = STAGES if field.name == "stages" else 1
            yield getattr(self, field.name) >= lowest, f"{field.name} >= {lowest}"
        yield self.tile_m % self.warp_m == 0, "a tile_m that warp_m divides"
        yield self.tile_n % self.warp_n == 0, "a tile_n that warp_n divides"
        yield self.threads <= Target.threads_per_block, "32 warps at most"

    def _requirements(self, config: ConvConfig, target: Target) -> Iterator[tuple[bool, str]]:
        """The same, for a configuration on a target."""
        atom, width = atom_of(config, target), config.float_type.bytes
        kind = f"{config.float_type}{' exact' if config.exact else ''} on {target}"
        yield self.tile_m <= self.threads, "a thread for each row of tile_m"
        if self.stages > STAGES:
            depth, channels = ROW_BYTES // width, config.in_channels_per_group
            yield streams(config, target), f"{STAGES} stages for {kind}"
            yield (
                channels % depth == 0,
                f"{STAGES} stages for {channels} input channels of a group: more are for "
                f"multiples of {depth}",
            )
            yield self.tile_k == depth, f"tile_k = {depth} for {kind}, in more stages"
            yield self.warp_m in (16, 32), "warp_m = 16 or 32, in more than 2 stages"
            whole = self.warp_n == self.tile_n and self.tile_n % 32 == 0
            yield whole, "warp_n = tile_n, multiples of 32, in more than 2 stages"
            return
        vector = 16 // width
        yield self.tile_k % vector == 0, f"a tile_k in multiples of {vector}"
        yield self.threads % self.tile_k == 0, "a tile_k that divides the threads"
        if atom is None:
            down = self.threads // 16
            yield self.tile_m % down == 0, f"a tile_m in multiples of {down}"
            yield self.tile_n % 16 == 0, "a tile_n in multiples of 16"
            return
        for field, unit in (("warp_m", atom.m), ("warp_n", 2 * atom.n), ("tile_k", atom.k)):
            yield getattr(self, field) % unit == 0, f"{field} in multiples of {unit} for {kind}"

    def _check(self, requirements: Iterable[tuple[bool, str]]) -> None:
        for possible, requirement in requirements:
            if not possible:
                raise ValueError(f"tiles must have {requirement}: got {self}")


def _tile_elements(plan: TilePlan, dtype: DType) -> list[int]:
    """Elements of images and of filters in shared memory."""
    if plan.streamed:
        return [0, StreamedTile.shared_bytes(plan.n, plan.stages) // dtype.bytes]
    layouts = (
        Layout.padded(dtype, k_extent=plan.k, extent=extent, k_axis=1)
        for extent in (plan.m, plan.n)
    )
    return [plan.stages * layout.rows * layout.pitch for layout in layouts]


# The forward kernel, with tiles also for tiny groups.
_TILED = dataclasses.replace(
    conv.FORWARD,
    parameters=tuple(
        p.laid("o i j e") if isinstance(p, In) and p.name == "weight" else p
        for p in conv.FORWARD.parameters
    ),
    plan=tiled_forward_plan,
)


@dataclasses.dataclass(frozen=True)
class ImplicitGemmConv:
    """The forward kernel of a problem on a target.

    Attributes:
      problem: the convolution.
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
        """The name of the entry: tiles and type."""
        tiles = self.tile_config or TileConfig.of_plan(self.plan)
        size = f"{tiles.tile_m}x{tiles.tile_n}x{tiles.tile_k}"
        return f"implicit_gemm_conv_{size}_{self.problem.input_type}"

    @property
    def smem_input_elements(self) -> int:
        """Elements of images in shared memory: 0 where they go straight into registers."""
        return _tile_elements(self.plan, self.problem.input_type)[0]

    @property
    def smem_filter_elements(self) -> int:
        """Elements of filters in shared memory, of all stages."""
        return _tile_elements(self.plan, self.problem.input_type)[1]

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
