"""Programs of other libraries, which oxijax's are timed beside on a CPU."""
