"""Numbers rounded in the safe direction: in sentences, as exact sums, as floats."""

from __future__ import annotations

import math
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


def shown(value: float) -> float:
    """A number of a guarantee as it is stated: rounded upwards to six significant digits.

    >>> shown(0.12345612), shown(2.0)
    (0.123457, 2.0)
    """
    return value if math.isinf(value) else float(Context(prec=6, rounding=ROUND_CEILING).create_decimal(Decimal(value)))


def rounded_up(value: Fraction | float) -> Fraction:
    """The value with twelve significant digits, rounded upwards."""
    return _rounded(value, ROUND_CEILING)


def rounded_down(value: Fraction | float) -> Fraction:
    """The value with twelve significant digits, rounded downwards."""
    return _rounded(value, ROUND_FLOOR)


def _rounded(value: Fraction | float, rounding: str) -> Fraction:
    exact, context = Fraction(value), Context(prec=12, rounding=rounding)
    return Fraction(context.divide(Decimal(exact.numerator), Decimal(exact.denominator)))


def float_below(value: Fraction) -> float:
    """The largest float not above the value."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, 0.0)
