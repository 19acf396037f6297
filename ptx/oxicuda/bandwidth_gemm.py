"""Memory-bound matrix products under OxiCUDA's names: a problem, and its tiles."""

from __future__ import annotations

import dataclasses

from ptx.isa.targets import Target, as_target
from ptx.kernels.gemm.definition import GEMM
from ptx.kernels.gemm.plan import choose
from ptx.oxicuda.intensity import BandwidthPrecision, BandwidthStrategy, analyze_intensity

__all__ = [
    "BandwidthGemmConfig",
    "BandwidthTileConfig",
    "generate_bandwidth_gemm_ptx",
    "select_bandwidth_tiles",
]

_WARP_TILE = 32  # rows, and columns, of a tile that a warp has


@dataclasses.dataclass(frozen=True)
class BandwidthGemmConfig:
    """The product of [m, k] and [k, n].

    Attributes:
      m, n, k: at least 1.
      target: GPU, for example "sm_80".
      precision: of the operands and the result.
      strategy: AUTO is the one that `analyze_intensity` recommends.
    """

    m: int
    n: int
    k: int
    target: Target | str = "sm_80"
    precision: BandwidthPrecision = BandwidthPrecision.F32
    strategy: BandwidthStrategy = BandwidthStrategy.AUTO

    def validate(self) -> None:
        """Raises ValueError or TypeError that names the field at fault, if one is."""
        for name in ("m", "n", "k"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        as_target(self.target)
        for name, kind in (("precision", BandwidthPrecision), ("strategy", BandwidthStrategy)):
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise TypeError(f"{name} must be a {kind.__name__}, got {value!r}")

    def resolved_strategy(self) -> BandwidthStrategy:
        """The strategy, where it is AUTO what the reference GPU's roofline recommends.

        The target has no say in it, so that tiles depend on the shape alone.

        Raises:
          ValueError, TypeError: a field is wrong.
        """
        self.validate()
        if self.strategy is not BandwidthStrategy.AUTO:
            return self.strategy
        analysis = analyze_intensity(self.m, self.n, self.k, self.precision.elem_bytes)
        return analysis.recommended_strategy


@dataclasses.dataclass(frozen=True)
class BandwidthTileConfig:
    """A block's share of a product.

    Attributes:
      tile_m, tile_n: rows and columns of the output.
      tile_k: a step along K.
      pipeline_stages: steps that shared memory holds.
      warps_m, warps_n: along M and N.
      vector_width: elements of a load.
      prefetch_distance: steps that loads are ahead of their use.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    pipeline_stages: int
    warps_m: int
    warps_n: int
    vector_width: int
    prefetch_distance: int


def select_bandwidth_tiles(config: BandwidthGemmConfig) -> BandwidthTileConfig:
    """The tiles of a product.

    Raises:
      ValueError, TypeError: a field of the configuration is wrong.
    """
    strategy = config.resolved_strategy()
    if strategy is BandwidthStrategy.SHALLOW_K:
        tile_k, stages, ahead = config.k, 1, 0
        largest = (128, 128)
    elif strategy is BandwidthStrategy.CACHE_PERSISTENT:
        tile_k, stages, ahead = min(8, config.k), 2, 1
        largest = (64, 64)
    else:
        tile_k, stages, ahead = min(16, config.k), 2, 2
        largest = (128, 64)
    tile_m, tile_n = _output_tile(config, largest)
    return BandwidthTileConfig(
        tile_m,
        tile_n,
        tile_k,
        pipeline_stages=stages,
        warps_m=tile_m // _WARP_TILE,
        warps_n=tile_n // _WARP_TILE,
        vector_width=config.precision.vector_width,
        prefetch_distance=ahead,
    )


def generate_bandwidth_gemm_ptx(config: BandwidthGemmConfig) -> str:
    """The PTX of `alpha * A @ B + beta * C`, or of strategy WARP_PARALLEL the sums of parts of K.

    Tiles are those that fit the target, not `select_bandwidth_tiles`; the entry's name says which.

    Raises:
      ValueError: a field of the configuration is wrong, or the strategy cannot take the problem.
      TypeError: a field has the wrong type.
      UnsupportedError: the target lacks an instruction.
    """
    strategy = config.resolved_strategy()
    kernel = choose(
        config.m, config.n, config.k, float_type=config.precision.ptx_type,
        strategy=strategy.value, use_alpha=True, use_c=True, use_beta=True,
    )  # fmt: skip
    return GEMM.write(kernel, config.target, {"r": max(config.m, config.n)}).text


def _output_tile(config: BandwidthGemmConfig, largest: tuple[int, int]) -> tuple[int, int]:
    """The largest tile whose longer side fits the output both ways; 32 x 32 for small ones."""
    extent = min(config.m, config.n)
    for tile in (largest, (64, 64)):
        if max(tile) <= extent:
            return tile
    return 32, 32
