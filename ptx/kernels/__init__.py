"""The kernels that the package ships: importing this registers each in `ptx.registry`."""
