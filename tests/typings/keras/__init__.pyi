# Keras has no types of its own; what a checker infers of its sources is mostly wrong.
from typing import Any

def __getattr__(name: str) -> Any: ...
