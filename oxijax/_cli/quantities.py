"""Text of numbers, and of quantities in units that suit them."""

import math

__all__ = ["number", "scaled", "time"]


def number(value: float) -> str:
    """With four digits, or as many as are before the point."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def time(us: float) -> str:
    """Microseconds as text, in a unit that suits."""
    return scaled(1e-6 * us, "s")


def scaled(value: float, unit: str) -> str:
    """A positive number with the SI prefix that leaves one to three digits before the point."""
    power = min(max(math.floor(math.log10(value) / 3), -4), 5)
    return f"{number(value / 1000**power)} {'pnµm kMGTP'[power + 4].strip()}{unit}"
