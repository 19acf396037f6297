"""How kernels are tested: faults that a test must notice, and calls of kernels on arrays."""
