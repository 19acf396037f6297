"""Checks and conversions of what users pass, with errors that name the argument."""
