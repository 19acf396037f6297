"""Kernels without tiles, for tiny groups: a thread has whole groups and a strip of pixels."""
