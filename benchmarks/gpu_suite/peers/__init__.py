"""Kernels of others for the sampling operators, where they are installed or their sources lie."""
