"""Tools of tests of kernels: faults that a test must notice, and calls of kernels on arrays."""
