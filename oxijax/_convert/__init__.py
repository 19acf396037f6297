"""The correspondence of the weights of layers and of PyTorch's modules."""
