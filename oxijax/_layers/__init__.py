"""What the layers of all libraries share: their arguments, and what is not a library's own."""
