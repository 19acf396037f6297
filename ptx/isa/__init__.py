"""PTX itself: types, GPUs and their limits, instructions, and NVIDIA's own assembler."""
