"""The CUDA driver, and the data sheets of GPUs."""
