"""The sections of `benchmarks/gpu.py`, each of which runs in a process of its own."""
