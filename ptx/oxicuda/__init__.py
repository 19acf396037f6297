"""The names and sizes of the documents that the kernels go back to, above the kernels."""
