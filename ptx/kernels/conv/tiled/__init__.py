"""Kernels whose blocks multiply tiles, on tensor cores and in ordinary arithmetic."""
