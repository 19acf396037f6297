"""What tests share: references, calls of kernels, checks, places to run and recorded data."""
