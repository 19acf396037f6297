"""Tests in programs/ run on the virtual GPU, and nowhere else: tests/virtual_gpu/run -- pytest."""

import os

collect_ignore = [] if "VIRTUAL_GPU_MODEL" in os.environ else ["programs"]
