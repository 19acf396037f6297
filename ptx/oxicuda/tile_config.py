"""Tiles that a caller chooses, and which of them the forward kernel can have."""

from __future__ import annotations

import dataclasses

from ptx.builder import ATOMS
from ptx.isa.dtypes import DType
from ptx.isa.targets import Target, as_target
from ptx.kernels.conv.config import ConvConfig
from ptx.tile.layout import Layout
from ptx.tile.plan import TilePlan, atom_name, streams
from ptx.tile.shared import STAGES
from ptx.tile.stream import ROW_BYTES, StreamedTile

__all__ = ["TileConfig", "tile_bytes"]


@dataclasses.dataclass(frozen=True)
class TileConfig:
    """How a product is cut for blocks and warps.

    With two stages, images and filters go through shared memory; with more, filters do, that many
    steps ahead, and images go straight into the registers of the warp that multiplies them.

    Attributes:
      tile_m, tile_n, tile_k: output pixels and output channels of a block, and a step along K.
      warp_m, warp_n: a warp's part of the tile. Without tensor cores it says how many warps there
        are, and each thread has elements spread over the tile.
      stages: of the pipeline.
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
        target = as_target(target)
        if target.supports("sm_80"):
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
        for field in dataclasses.fields(self):
            lowest = STAGES if field.name == "stages" else 1
            _require(getattr(self, field.name) >= lowest, self, f"{field.name} >= {lowest}")
        _require(self.tile_m % self.warp_m == 0, self, "a tile_m that warp_m divides")
        _require(self.tile_n % self.warp_n == 0, self, "a tile_n that warp_n divides")
        _require(self.threads <= Target.threads_per_block, self, "32 warps at most")

    def plan(self, config: ConvConfig, target: Target) -> TilePlan:
        """These tiles for the forward kernel of a convolution.

        Raises:
          ValueError: there is no such kernel; the message says what is possible.
        """
        self.validate()
        name, width = atom_name(config, target), config.float_type.bytes
        what = f"{config.float_type}{' exact' if config.exact else ''} on {target}"
        _require(self.tile_m <= self.threads, self, "a thread for each row of tile_m")
        if streamed := self.stages > STAGES:
            slice_ = ROW_BYTES // width
            _require(streams(config, target), self, f"{STAGES} stages for {what}")
            channels = config.in_channels_per_group
            _require(
                channels % slice_ == 0, self,
                f"{STAGES} stages for {channels} input channels of a group: "
                f"more are for multiples of {slice_}",
            )  # fmt: skip
            _require(self.tile_k == slice_, self, f"tile_k = {slice_} for {what}, in more stages")
            _require(self.warp_m in (16, 32), self, "warp_m = 16 or 32, in more than 2 stages")
            whole = self.warp_n == self.tile_n and self.tile_n % 32 == 0
            _require(whole, self, "warp_n = tile_n, multiples of 32, in more than 2 stages")
        else:
            vector = 16 // width
            _require(self.tile_k % vector == 0, self, f"a tile_k in multiples of {vector}")
            _require(self.threads % self.tile_k == 0, self, "a tile_k that divides the threads")
            if name is None:
                down = self.threads // 16
                _require(self.tile_m % down == 0, self, f"a tile_m in multiples of {down}")
                _require(self.tile_n % 16 == 0, self, "a tile_n in multiples of 16")
            else:
                atom = ATOMS[name]
                multiples = {"warp_m": atom.m, "warp_n": 2 * atom.n, "tile_k": atom.k}
                for field, of in multiples.items():
                    fits = getattr(self, field) % of == 0
                    _require(fits, self, f"{field} in multiples of {of} for {what}")
        warps = (self.tile_m // self.warp_m, self.tile_n // self.warp_n)
        plan = TilePlan(self.tile_m, self.tile_n, self.tile_k, warps, self.stages, streamed)
        room = target.shared_per_block if streamed else target.static_shared_per_block
        need = sum(tile_bytes(plan, config.float_type)) + 16 * self.tile_m  # windows of rows
        _require(need <= room, self, f"{room} bytes of shared memory, not {need},")
        sums = self.tile_m * self.tile_n // self.threads * max(1, width // 4)
        # Half of a thread's registers for sums: the rest is needed to make the operands.
        most = min(256, target.registers_per_sm // self.threads)
        need = f"{most // 2} registers of sums in a thread, not {sums},"
        _require(2 * sums <= most, self, need)
        two_blocks = 2 * sums * 2 * self.threads <= target.registers_per_sm
        return plan if two_blocks else dataclasses.replace(plan, min_blocks=1)


def tile_bytes(plan: TilePlan, dtype: DType) -> tuple[int, int]:
    """Shared memory of images and of filters."""
    if plan.streamed:
        return 0, StreamedTile.shared_bytes(plan.n, plan.stages)
    a, b = (
        plan.stages * Layout.padded(dtype, k_extent=plan.k, extent=extent, k_axis=1).bytes
        for extent in (plan.m, plan.n)
    )
    return a, b


def _require(possible: bool, tiles: TileConfig, what: str) -> None:
    if not possible:
        raise ValueError(f"tiles must have {what}: got {tiles}")
