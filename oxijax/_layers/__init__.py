"""The parts of layers that do not depend on a library."""
