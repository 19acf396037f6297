"""What the families share: primitives, the launch, arguments, and what is private to JAX."""
