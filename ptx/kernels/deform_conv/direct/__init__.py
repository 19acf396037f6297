"""Kernels without tiles, for tiny groups: a thread has a pixel and a few channels."""
