"""Pages of figures, each made of the newest result of its kind in `benchmarks/results`."""
