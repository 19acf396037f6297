"""Windows of samples a pixel apart, in images of one channel: kernels that read a pixel once."""

from ptx.kernels.sampling.windows.backward_value import WINDOWS_BACKWARD_VALUE
from ptx.kernels.sampling.windows.config import CONFIGS, WindowsConfig
from ptx.kernels.sampling.windows.forward import WINDOWS_FORWARD

__all__ = ["CONFIGS", "WINDOWS_BACKWARD_VALUE", "WINDOWS_FORWARD", "WindowsConfig"]
