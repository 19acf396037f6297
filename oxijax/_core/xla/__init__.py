"""Building blocks of the XLA programs that references are."""
