"""Elementary functions and linear algebra whose last bits are the same on every processor.

Sums, products, quotients and roots of IEEE numbers are correctly rounded whatever instructions compute them, and NumPy
adds in a fixed order. Its exponentials and logarithms depend on the instructions, and the products of linear algebra on
the kernel. Here the former are polynomials, and the latter are products of integers below 2**53, which are exact in
any order.

References
----------
.. [1] Ozaki, Ogita, Oishi, Rump, *Error-free transformations of matrix multiplication*, 2012.
.. [2] Higham, *Functions of Matrices*, 2008, equation 5.20: the iteration of `positive_part`.
.. [3] Golub, Van Loan, *Matrix Computations*, 2013, section 8.5: Jacobi's method, in parallel rotations.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from dpdist.privacy.arrays import Floats

LN2: Final = 0.6931471805599453
_DEGREE = 13
_EXP2 = [math.prod([LN2] * i) / math.factorial(i) for i in range(_DEGREE + 1)]
_LOG2 = [2 / LN2 / (2 * i + 1) for i in range(12)]
_LOG2_E = 1 / LN2
_SINE = [(-1) ** i * math.prod([math.pi] * (2 * i + 1)) / math.factorial(2 * i + 1) for i in range(12)]
_UNIT = 2.0**26
_ERFC = (  # Chebyshev coefficients of ln(erfc(z) / t) + z^2 for t = 2/(2 + z) in (0, 1]
    *(-1.3026537197817094, 0.6419697923564902, 0.019476473204185836, -0.009561514786808632, -0.0009465953444820369),
    *(0.00036683949785276145, 4.252332480690777e-05, -2.0278578112534242e-05, -1.6242900046470256e-06),
    *(1.3036558355805232e-06, 1.5626441722066142e-08, -8.523809591492654e-08, 6.5290544390988515e-09),
    *(5.059343495551469e-09, -9.91364156493033e-10, -2.273651222931836e-10, 9.646791102015527e-11),
    *(2.3940380830391146e-12, -6.886027526497553e-12, 8.944879273090725e-13, 3.130921399342958e-13),
    *(-1.1270822361367252e-13, 3.810905255189232e-16, 7.106097613609237e-15, -1.5230282014571043e-15),
)
_BITS = 23  # of a slice: sums of 2**7 products of two slices are below 2**53
_TERMS = 1 << 7
_BLOCK = 64
_NEWTON = 48  # steps: a positive eigenvalue of 1.5**-48 times the norm is still found to be one
_SWEEPS = 30


# --- functions --------------------------------------------------------------------------------------------------------


def exp2(x: Floats) -> Floats:
    """``2**x`` within a few units in the last place, for x up to 1000; 0 below -1000."""
    bounded = np.clip(x, -1001.0, 1000.0)
    whole = np.rint(bounded)
    value = _polynomial(_EXP2, bounded - whole)
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
    value = _polynomial(_LOG2, ratio * ratio)
    value *= ratio
    value += exponent - small
    return np.asarray(value)


def log(x: Floats) -> Floats:
    """The natural logarithm, as `log2`."""
    return log2(x) * LN2


def log1p(x: Floats) -> Floats:
    """``ln(1 + x)`` for x >= 0, with the relative accuracy of `log`."""
    y = 1 + np.minimum(x, 1e300)
    return np.where((y == 1) | np.isinf(x), x, log(y) * np.divide(x, y - 1, out=np.ones_like(y), where=y != 1))


def expm1(x: Floats) -> Floats:
    """``e**x - 1`` for x >= 0, with the relative accuracy of `exp`."""
    y = exp(x)
    logs = log(y)
    return np.where(y == 1, x, (y - 1) * np.divide(x, logs, out=np.ones_like(y), where=logs != 0))


def power(x: Floats, exponent: int) -> Floats:
    """``x**exponent`` for a positive whole exponent."""
    out = x
    for _ in range(exponent - 1):
        out = out * x
    return out


def sin_turns(x: Floats) -> Floats:
    """``sin(2 pi x)``, within 2**-50; sines and cosines of a phase alternate."""
    rest = np.abs(x - np.rint(x))  # of the nearest whole turn, up to a half
    rest = 2 * np.minimum(rest, 0.5 - rest)  # of half a turn, up to a half
    return np.copysign(_polynomial(_SINE, rest * rest) * rest, x - np.rint(x))


def ndtr(x: Floats) -> Floats:
    """The standard normal distribution function, within 2**-42."""
    half = _erfc(np.abs(x) * math.sqrt(0.5)) / 2
    return np.where(x > 0, 1 - half, half)


def ndtri(p: Floats) -> Floats:
    """The quantile of the standard normal distribution for p in (0, 1), within 2**-40, by Halley's method."""
    tail = np.minimum(p, 1 - p)
    t = np.sqrt(-2 * log(tail))
    z = t - (2.30753 + 0.27061 * t) / (1 + t * (0.99229 + 0.04481 * t))
    for _ in range(3):
        error = (_erfc(z * math.sqrt(0.5)) / 2 - tail) * math.sqrt(2 * math.pi) * exp(np.minimum(z * z / 2, 690))
        z = z + error / (1 - error * z / 2)
    return np.asarray(np.where(p < 0.5, -z, z))


def _erfc(z: Floats) -> Floats:
    """The complementary error function for z >= 0."""
    t = 2 / (2 + z)
    one, two, x = np.zeros_like(z), np.zeros_like(z), 4 * t - 2
    for coefficient in _ERFC[:0:-1]:
        one, two = x * one - two + coefficient, one
    return t * exp(np.maximum(-z * z + (_ERFC[0] + x * one) / 2 - two, -690))


def _polynomial(coefficients: list[float], x: Floats) -> Floats:
    value = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value *= x
        value += coefficient
    return value


# --- products ---------------------------------------------------------------------------------------------------------


def inner(a: Floats, b: Floats) -> float:
    """The inner product of two vectors, added in NumPy's order."""
    return float((a * b).sum())


def probability_product(messages: Floats, conditionals: Floats) -> Floats:
    """Products of matrices ``P(a, s)`` and ``P(t | s)``, batched, within 2**-26 of the sum of a row of messages.

    Each row of messages is scaled by a power of two to sum to between 1/2 and 1 (less below 2**-997), and both factors
    are rounded to the grid 2**-26.
    """
    exponents = np.maximum(np.frexp(messages.sum(-1, keepdims=True))[1], -997)  # their powers are finite
    left = messages * np.ldexp(1.0, 26 - exponents)
    product: Floats = np.rint(left, out=left) @ np.rint(conditionals * _UNIT)
    product *= np.ldexp(1.0, exponents - 52)
    return product


def matmul(a: Floats, b: Floats) -> Floats:
    """``a @ b`` of a matrix and a matrix or vector, within 2**-44 of the largest of each row times that of each column.

    Both are cut into slices of 23 bits, whose products are exact [1]_; that of the two lowest is left out.
    """
    columns = b if b.ndim == 2 else b[:, None]
    out = np.zeros((len(a), columns.shape[1]))
    for start in range(0, a.shape[1], _TERMS):
        high, low, rows = _slices(a[:, start : start + _TERMS], axis=1)
        first, second, other = _slices(columns[start : start + _TERMS], axis=0)
        exponents = rows + other - 2 * _BITS
        out += np.ldexp(high @ first, exponents) + np.ldexp(high @ second + low @ first, exponents - _BITS + 1)
    return out if b.ndim == 2 else out[:, 0]


def _slices(x: Floats, *, axis: int) -> tuple[Floats, Floats, Floats]:
    """``x = (high + 2**(1 - bits) low) 2**(exponents - bits)``, both integers, with an exponent a row or column."""
    _, exponents = np.frexp(np.abs(x).max(axis=axis, keepdims=True, initial=0.0))
    scaled = np.ldexp(x, _BITS - exponents)
    high = np.rint(scaled)
    return high, np.rint(np.ldexp(scaled - high, _BITS - 1)), exponents


def squared_distances(a: Floats, b: Floats) -> Floats:
    """Squared Euclidean distance of every row of a, float64[n, p], to every row of b, float64[m, p]: float64[n, m]."""
    out = np.zeros((len(a), len(b)))
    for one, other in zip(a.T, b.T, strict=True):
        apart = np.subtract.outer(one, other)
        apart *= apart
        out += apart
    return out


# --- systems ----------------------------------------------------------------------------------------------------------


def cholesky(matrix: Floats) -> Floats:
    """The lower triangle L of a symmetric positive definite ``matrix = L L^T``. Raises numpy.linalg.LinAlgError: it is
    not positive definite.
    """
    left = np.tril(matrix)
    for start in range(0, len(left), _BLOCK):
        stop = min(start + _BLOCK, len(left))
        for j in range(start, stop):
            if not left[j, j] > 0:
                raise np.linalg.LinAlgError("the matrix is not positive definite")
            left[j:, j] /= math.sqrt(left[j, j])
            left[j + 1 :, j + 1 : stop] -= np.multiply.outer(left[j + 1 :, j], left[j + 1 : stop, j])
        below = left[stop:, start:stop]
        left[stop:, stop:] -= matmul(below, below.T)
    return np.tril(left)


def solve_lower(lower: Floats, right: Floats, *, transposed: bool = False) -> Floats:
    """``L^-1 right``, or ``L^-T right``, for a lower triangle and a vector or matrix."""
    out = right.astype(np.float64)
    columns = out if out.ndim == 2 else out[:, None]
    starts = range(0, len(lower), _BLOCK)
    for start in reversed(starts) if transposed else starts:
        stop = min(start + _BLOCK, len(lower))
        for j in reversed(range(start, stop)) if transposed else range(start, stop):
            known = slice(j + 1, stop) if transposed else slice(start, j)
            row = lower[known, j] if transposed else lower[j, known]
            columns[j] = (columns[j] - (row[:, None] * columns[known]).sum(axis=0)) / lower[j, j]
        if transposed:
            columns[:start] -= matmul(lower[start:stop, :start].T, columns[start:stop])
        else:
            columns[stop:] -= matmul(lower[stop:, start:stop], columns[start:stop])
    return out


def solve(matrix: Floats, right: Floats) -> Floats:
    """``matrix^-1 right`` for a symmetric positive definite matrix. Raises numpy.linalg.LinAlgError: it is not one."""
    lower = cholesky(matrix)
    return solve_lower(lower, solve_lower(lower, right), transposed=True)


# --- eigenvalues ------------------------------------------------------------------------------------------------------


def positive_part(matrix: Floats) -> Floats:
    """The nearest symmetric matrix without negative eigenvalues, ``(A + |A|) / 2`` with ``|A| = A sign(A)``.

    The sign is found by Newton and Schulz's iteration [2]_; an eigenvalue below 4e-9 of the norm may keep a part.
    """
    symmetric = (matrix + matrix.T) / 2
    norm = math.sqrt(float((symmetric * symmetric).sum()))
    if not norm:
        return symmetric
    sign = symmetric / norm
    for _ in range(_NEWTON):
        before, sign = sign, matmul(sign, 1.5 * np.eye(len(sign)) - 0.5 * matmul(sign, sign))
        sign = (sign + sign.T) / 2
        if np.abs(sign - before).max() < 2.0**-40:
            break
    size = matmul(symmetric, sign)
    return np.asarray((symmetric + (size + size.T) / 2) / 2)


def eigh(matrix: Floats) -> tuple[Floats, Floats]:
    """Ascending eigenvalues and orthonormal eigenvectors, as columns, of a symmetric matrix; the largest entry of each
    vector is positive. By Jacobi's method, which rotates half of the pairs of rows at a time [3]_. Raises
    numpy.linalg.LinAlgError: it is empty, or not finite.
    """
    if not len(matrix) or not np.isfinite(matrix).all():
        raise np.linalg.LinAlgError("eigenvalues are of finite matrices")
    n = len(matrix)
    size = n + n % 2
    work, vectors = np.zeros((size, size)), np.eye(size)
    work[:n, :n] = (matrix + matrix.T) / 2
    around = np.arange(size)
    small = (2.0**-52 * math.sqrt(float((work * work).sum()))) ** 2
    for _ in range(_SWEEPS):
        if float((np.triu(work, 1) ** 2).sum()) <= small:
            break
        for _ in range(size - 1):
            p, q = around[: size // 2], around[size // 2 :][::-1]
            _rotate(work, vectors, p, q)
            around = np.concatenate([around[:1], around[-1:], around[1:-1]])
    values = np.diag(work)[:n]
    order = np.argsort(values, kind="stable")
    found = vectors[order, :n].T
    largest = np.take_along_axis(found, np.abs(found).argmax(axis=0)[None], axis=0)
    return values[order], found * np.where(largest < 0, -1.0, 1.0)


def _rotate(work: Floats, vectors: Floats, p: np.ndarray, q: np.ndarray) -> None:
    """Make the entries (p, q) of the matrix zero, by rotations of disjoint pairs of rows and columns."""
    mixed = work[p, q]
    some = mixed != 0
    theta = np.divide(work[q, q] - work[p, p], 2 * mixed, out=np.zeros_like(mixed), where=some)
    theta = np.clip(theta, -1e150, 1e150)
    tangent = np.where(some, np.copysign(1.0, theta) / (np.abs(theta) + np.sqrt(theta * theta + 1)), 0.0)
    cosine = 1 / np.sqrt(tangent * tangent + 1)
    sine = tangent * cosine
    for rows in (work, vectors):
        one, two = rows[p], rows[q]
        rows[p] = cosine[:, None] * one - sine[:, None] * two
        rows[q] = sine[:, None] * one + cosine[:, None] * two
    one, two = work[:, p], work[:, q]
    work[:, p] = cosine * one - sine * two
    work[:, q] = sine * one + cosine * two
    work[p, q] = work[q, p] = 0.0
