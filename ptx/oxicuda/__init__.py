"""The names of the OxiCUDA documents, an adapter above the kernels."""
