"""How the weights of layers and of PyTorch's modules correspond."""
