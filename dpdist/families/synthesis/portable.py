"""Elementary functions and products whose last bits are the same on every processor.

Sums, products, quotients and roots of IEEE numbers are correctly rounded whatever instructions compute them, and NumPy
adds in a fixed order. Its exponentials and logarithms depend on the instructions, and the products of linear algebra on
the kernel. Here the former are polynomials, and the latter are products of integers below 2**53, which are exact in
any order.
"""

from __future__ import annotations

import math

import numpy as np

from dpdist.privacy.arrays import Floats

_DEGREE = 13
_EXP2 = [math.log(2) ** i / math.factorial(i) for i in range(_DEGREE + 1)]
_LOG2 = [2 / math.log(2) / (2 * i + 1) for i in range(12)]
_LOG2_E = 1 / math.log(2)
_UNIT = 2.0**26


def exp2(x: Floats) -> Floats:
    """``2**x`` within a few units in the last place, for x up to 1000; 0 below -1000."""
    bounded = np.clip(x, -1001.0, 1000.0)
    whole = np.rint(bounded)
    fraction = bounded - whole
    value = np.full_like(fraction, _EXP2[-1])
    for coefficient in _EXP2[-2::-1]:
        value *= fraction
        value += coefficient
    value *= ((whole.astype(np.int64) + 1023) << 52).view(np.float64)
    value[bounded < -1000] = 0
    return value


def exp(x: Floats) -> Floats:
    """``e**x`` within 2**-42, for x up to 690; 0 below -693."""
    return exp2(x * _LOG2_E)


def log2(x: Floats) -> Floats:
    """The logarithm to base 2 of positive numbers, within a few units in the last place of the larger of it and 1."""
    mantissa, exponent = np.frexp(x)
    small = mantissa < math.sqrt(0.5)
    mantissa = np.where(small, 2 * mantissa, mantissa)
    ratio = (mantissa - 1) / (mantissa + 1)
    square = ratio * ratio
    value = np.full_like(square, _LOG2[-1])
    for coefficient in _LOG2[-2::-1]:
        value *= square
        value += coefficient
    value *= ratio
    value += exponent - small
    return np.asarray(value)


def inner(a: Floats, b: Floats) -> float:
    """The inner product of two vectors, added in NumPy's order."""
    return float((a * b).sum())


def probability_product(messages: Floats, conditionals: Floats) -> Floats:
    """Products of matrices ``P(a, s)`` and ``P(t | s)``, batched, within 2**-26 of the sum of a row of messages.

    Each row of messages is scaled by a power of two to sum to between 1/2 and 1, and both factors are rounded to the
    grid 2**-26.
    """
    _, exponents = np.frexp(messages.sum(-1, keepdims=True))
    left, right = np.rint(np.ldexp(messages, 26 - exponents)), np.rint(conditionals * _UNIT)
    return np.asarray(np.ldexp(left @ right, exponents - 52))
