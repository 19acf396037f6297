"""The names of the OxiCUDA documents are names of `ptx`, which imports kernels when it must."""

import subprocess
import sys

import pytest

import ptx
from ptx.oxicuda import convolutions, matrix_products

IMPORTS_NO_KERNEL = """
import sys, ptx
assert not [module for module in sys.modules if module.startswith("ptx.kernels")]
from ptx import ImplicitGemmConv
for name in ptx.__all__:
    getattr(ptx, name)
"""


def test_names_of_the_documents_are_ptx_names():
    for module in (convolutions, matrix_products):
        assert {*module.__all__} <= {*ptx.__all__} <= {*dir(ptx)}
        assert all(getattr(ptx, name) is getattr(module, name) for name in module.__all__)
    with pytest.raises(AttributeError, match="module 'ptx' has no attribute 'generate_nothing'"):
        _ = ptx.generate_nothing  # pyright: ignore[reportAttributeAccessIssue]


def test_importing_ptx_imports_no_kernel():
    ran = subprocess.run([sys.executable, "-c", IMPORTS_NO_KERNEL], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
