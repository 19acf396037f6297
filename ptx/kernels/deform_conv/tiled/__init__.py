"""Main loops over tiles, for tensor cores and ordinary arithmetic."""
