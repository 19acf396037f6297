"""Modules that tests share: references, calls of kernels, checks, places to run, recorded data."""
