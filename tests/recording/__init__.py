"""Records of what PyTorch computes, for tests: a module for each file of `tests/data`.

A module is run from the folder `tests`, in an environment of its own. oxijax needs none of it:

    pip install -r benchmarks/requirements-torchvision.txt
    cd tests && python -m recording.deform_conv_layers --check

Without `--check` it writes the file; with it, it records again and fails where anything differs
from the file by more than rounding.
"""
