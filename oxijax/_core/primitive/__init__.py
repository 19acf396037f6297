"""JAX primitives with all of their rules, each made from one description."""
