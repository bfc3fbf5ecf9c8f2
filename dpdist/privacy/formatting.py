"""Numbers in sentences."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction


def number_of(count: int, what: str) -> str:
    """How many of something, in words: ``1 charge``, ``2,000 charges``."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def upwards(value: Fraction | float) -> str:
    """What is spent or guaranteed: six digits, rounded upwards. A float stands for the decimal it prints as."""
    return _digits(value, ROUND_CEILING)


def downwards(value: Fraction | float) -> str:
    """What remains: six digits, rounded downwards."""
    return _digits(value, ROUND_FLOOR)


def _digits(value: Fraction | float, rounding: str) -> str:
    context = Context(prec=6, rounding=rounding)
    if isinstance(value, Fraction):
        number = context.divide(Decimal(value.numerator), Decimal(value.denominator))
    else:
        number = context.create_decimal(repr(float(value)))
    if not number.is_finite():
        return "inf"
    number = number.normalize(context)
    return f"{number:f}" if not number or Decimal("1e-4") <= number < Decimal("1e6") else f"{number:e}"
