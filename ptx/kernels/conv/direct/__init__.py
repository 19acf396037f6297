"""Kernels without tiles, for tiny groups, in ordinary arithmetic."""
