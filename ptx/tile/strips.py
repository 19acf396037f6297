"""Strips: the pixels of all images lie below each other and are cut into equal columns.

A block has neighbouring pixels of one strip, row by row, so that what they read lies together.
"""

from __future__ import annotations

__all__ = ["strip_blocks", "strip_width"]


def strip_width(images: int, height: int, width: int, rows: int) -> int:
    """Columns of a strip: about 16, and so that few blocks have pixels that do not exist.

    Args:
      images: number of images.
      height: pixels of each from top to bottom.
      width: pixels of each row.
      rows: pixels of a block.
    """

    def cost(strips: int) -> tuple[int, float]:
        columns = -(-width // strips)
        return _blocks(images, height, width, rows, columns), abs(columns - 16)

    fewest = max(1, width // 24)
    strips = min(range(fewest, min(max(1, width // 8), fewest + 100) + 1), key=cost)
    return -(-width // strips)


def strip_blocks(images: int, height: int, width: int, rows: int) -> int:
    """Blocks that cover all pixels; see `strip_width` for the arguments."""
    return _blocks(images, height, width, rows, strip_width(images, height, width, rows))


def _blocks(images: int, height: int, width: int, rows: int, columns: int) -> int:
    strips = -(-width // columns) if width else 0
    return -(-images * height * columns // rows) * strips
