"""One call of a kernel: its configuration as JSON, the plans it may have, and those kept for it."""
