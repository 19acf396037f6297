"""The arrays of the points' coordinates and weights: separate, or packed into one."""

from __future__ import annotations

from collections.abc import Sequence

from ptx.builder import Pointer, Val
from ptx.isa.dtypes import u64
from ptx.kernels.sampling.units import Span, Unit
from ptx.tile.vectors import load_words, widen

__all__ = ["PointArrays"]


class PointArrays:
    """The arrays of points, or of the gradients to them, as a unit sees them.

    Args:
      unit: the unit.
      locations: the coordinates of all points of all units, the last axis's first: (x, y), for
        example; None where they are packed.
      weights: the weights of all points of all units; None for 1, or where they are packed.
      packed: a row for each query, of all pairs and then all weights of each of its heads, and
        padding; None where there are arrays of their own.

    Attributes:
      locations: from which places are counted by `index`.
      weights: from which weights are counted by `index`; None for 1.
    """

    def __init__(
        self,
        unit: Unit,
        locations: Pointer | None,
        weights: Pointer | None,
        packed: Pointer | None,
    ):
        self.unit, self.packed = unit, packed
        k, config = unit.k, unit.config
        # A vector lies at a multiple of its size: no pair does where a head has an odd number of
        # elements, and starts behind another one.
        self.pairs = config.dims == 2 and (
            packed is None or config.heads == 1 or sum(config.points) % 2 == 0
        )
        if packed is not None:
            of_head = k.convert(unit.head * (3 * sum(config.points)), u64)
            locations = packed + k.mad_wide(unit.row, config.packed_width, of_head)
            weights = locations + 2 * sum(config.points)
        assert locations is not None
        self.locations, self.weights = locations, weights

    def index(self, span: Span) -> Val:
        """The number of the lane's own point of a span."""
        unit = self.unit
        if self.packed is not None:
            return span.own
        own = unit.k.convert(span.own, u64)
        return unit.k.mad_wide(unit.index, sum(unit.config.points), own)

    def first_weight(self) -> Pointer:
        """The weight of the unit's first point."""
        unit = self.unit
        assert self.weights is not None
        if self.packed is not None:
            return self.weights
        return self.weights + unit.k.mul_wide(unit.index, sum(unit.config.points))

    def place(self, index: Val) -> Pointer:
        """Where the coordinates of a point are."""
        place = self.locations
        for _ in range(self.unit.config.dims):
            place = place + index
        return place

    def load_place(self, index: Val, where: Val | None) -> list[Val]:
        """Reads the coordinates of a point, as f32 or f64."""
        place, words = self.place(index), []
        width = 2 if self.pairs else 1
        for i in range(0, self.unit.config.dims, width):
            words += load_words(place + i, width, where=where)
        return widen(self.unit.k, words)

    def store_place(self, place: Pointer, values: Sequence[Val], where: Val) -> None:
        """Writes the coordinates of a point, in the type that they have there."""
        if self.pairs:
            place.store(0, values, where=where)
            return
        for i, value in enumerate(values):
            place.store(i, value, where=where)

    def store_padding(self) -> None:
        """Writes zeros behind the last head of a query, where there is padding."""
        unit, packed, config = self.unit, self.packed, self.unit.config
        used, width = 3 * config.heads * sum(config.points), config.packed_width
        if packed is None or used == width:
            return
        row = packed + unit.k.mul_wide(unit.row, width)
        last = unit.exists & unit.head.eq(config.heads - 1)
        for start in range(used, width, unit.plan.lanes):
            element = unit.lane + start
            (row + element).store(0, 0.0, where=last & (element < width))
