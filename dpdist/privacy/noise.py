"""Keyed noise: the only source of randomness in dpdist.

Noise is a pure function of a key, a name and an index. A recomputed task, a retry and another chunking give
the same bits, and arrays with different names have independent noise. A *name* is the address of one array of
draws, such as ``"parameters/table/3"``: two statistics, or one statistic at two scales, never share a name.

Every draw compares keyed words with integer thresholds that are right to the last unit (`_thresholds`). There
is no floating-point Laplace or Gaussian sampling, whose holes and rounding reveal the statistic [1]_.

The stream of a name is the AES-256-CTR key stream of the subkey ``HMAC-SHA256(key, name)``, from counter 0,
as little-endian 64-bit words. All guarantees about it are computational.

References
----------
.. [1] Mironov, *On significance of the least significant bits for differential privacy*, 2012.
.. [2] Ghosh, Roughgarden, Sundararajan, *Universally utility-maximizing privacy mechanisms*, 2009.
"""

from __future__ import annotations

import hmac
import operator
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from dpdist.privacy import _thresholds
from dpdist.privacy.arrays import steps_of
from dpdist.privacy.selection import Candidates

SAMPLER_DELTA = 2.0**-60
"""What one draw adds to delta. A draw is within 2**-100 of its stated distribution in total variation, which adds
at most ``(1 + exp(epsilon)) * 2**-100`` to delta: below 2**-60 up to epsilon = 27."""

_CHUNK = 1 << 16  # draws at a time: the words, guesses and values of a chunk stay in the cache
_ZEROS = bytes(8 * _CHUNK)
_SECOND = b"\0second"  # the stream of bits 64 to 127 of each uniform


class Noise:
    """Random words and noise as pure functions of (key, name, index).

    Parameters
    ----------
    key : bytes
        32 secret bytes. Neither printed, pickled nor copied.

    Notes
    -----
    In every method, element i of the result is draw number ``start + i`` of the stream `name`, whatever `start` and
    `count`. A scale, or a deviation before rounding, is in units of the statistic, above 0 and at most `LARGEST_SCALE`
    (times the grid, a power of two: `grid_below`); a float is taken as the number it is. Every method raises ValueError
    where a number is out of its range, for a negative `start` or `count` and for a NUL in the name.
    """

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        if len(key) != 32:
            raise ValueError("a release key has exactly 32 bytes")
        self._key = bytes(key)

    def __repr__(self) -> str:
        return "Noise(<key hidden>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Noise holds a release key and is never pickled or copied; pass a KeyRef instead")

    def words(self, name: str, count: int, *, start: int = 0) -> NDArray[np.uint64]:
        """Words ``start`` to ``start + count - 1`` of the stream `name`.

        Returns
        -------
        uint64[count]
            Uniform on [0, 2**64).
        """
        return self._words(*_checked(name, count, start))

    def integers(self, name: str, count: int, *, high: int, start: int = 0) -> NDArray[np.int64]:
        """Uniform integers on [0, high), ``floor(U * high)`` for a uniform U of 128 bits.

        The first word decides, unless the next 64 bits of U could carry into the integer part (probability
        ``high * 2**-64``); then they are read too. Total variation from uniform: below ``high * 2**-129``.
        Raises ValueError: `high` is out of range.

        Parameters
        ----------
        high : int
            From 1 to 2**63.
        """
        high = operator.index(high)
        if not 1 <= high <= 2**63:
            raise ValueError(f"high must be from 1 to 2**63, got {high}")
        address, count, start = _checked(name, count, start)
        values = np.empty(count, dtype=np.int64)
        for offset in range(0, count, _CHUNK):
            piece = values[offset : offset + _CHUNK]
            words = self._words(address, piece.size, start + offset)
            piece[:] = _multiply_high(words, high).view(np.int64)
            fractions = words * np.uint64(high % 2**64)
            unsettled = np.flatnonzero(fractions > np.uint64(2**64 - high))
            if unsettled.size:
                seconds = self._words(address + _SECOND, piece.size, start + offset)[unsettled]
                added = _multiply_high(seconds, high)
                piece[unsettled] += fractions[unsettled] + added < added  # the sum wraps: carry one
        return values

    def discrete_laplace(self, name: str, count: int, *, scale: float | Fraction, start: int = 0) -> NDArray[np.int64]:
        """Discrete Laplace noise, ``P(z) = (1 - q) / (1 + q) * q**|z|`` with ``q = exp(-1 / scale)``.

        On an integer statistic of L1 sensitivity D it gives ``D / scale``-differential privacy [1]_.
        Raises ValueError: `scale` is not finite, not positive or too large.

        Parameters
        ----------
        scale : float or Fraction
            In units of the statistic, above 0, at most `LARGEST_SCALE`. A float is taken as the number it is.

        References
        ----------
        .. [1] Ghosh, Roughgarden, Sundararajan, *Universally utility-maximizing privacy mechanisms*, 2009.
        """
        return self._sum_of_digits(name, count, start, _thresholds.laplace(steps_of("scale", scale)))

    def gaussian_integers(self, name: str, count: int, *, sigma: float | Fraction, start: int = 0) -> NDArray[np.int64]:
        """Rounded Gaussian noise, the integer nearest to a draw of ``N(0, sigma**2)``.

        On an integer statistic it is post-processing of the continuous Gaussian mechanism, whose accounting
        applies.
        Raises ValueError: `sigma` is not finite, not positive or too large.

        Parameters
        ----------
        sigma : float or Fraction
            Deviation before rounding, in units of the statistic, above 0, at most `LARGEST_SCALE`. A float is
            taken as the number it is.
        """
        return self._sum_of_digits(name, count, start, _thresholds.gaussian(steps_of("sigma", sigma)))

    def grid_laplace(
        self, name: str, count: int, *, scale: float | Fraction, grid: float, start: int = 0
    ) -> NDArray[np.float64]:
        """Discrete Laplace noise on the multiples of `grid`, ``P(x) ~ exp(-|x| / scale)``.

        The statistic must be on the same grid (`round_to_grid`), which adds ``grid`` a value to its L1
        sensitivity.
        Raises ValueError: `scale` is not finite, not positive or too large, or `grid` is not a power of two.

        Parameters
        ----------
        scale : float or Fraction
            In units of the statistic, above 0, at most ``LARGEST_SCALE * grid``.
        grid : float
            A power of two (`grid_below`).

        Returns
        -------
        float64[count]
            Exact multiples of `grid`.
        """
        steps = self.discrete_laplace(name, count, scale=steps_of("scale", scale, grid), start=start)
        return steps.astype(np.float64) * np.float64(grid)

    def grid_gaussian(
        self, name: str, count: int, *, sigma: float | Fraction, grid: float, start: int = 0
    ) -> NDArray[np.float64]:
        """Rounded Gaussian noise, the multiple of `grid` nearest to a draw of ``N(0, sigma**2)``.

        The statistic must be on the same grid (`round_to_grid`): for d values that adds ``grid * sqrt(d)`` to
        its L2 sensitivity. Many draws are fastest for ``sigma <= 2**10 * grid``; finer grids take more words
        a draw.
        Raises ValueError: `sigma` is not finite, not positive or too large, or `grid` is not a power of two.

        Parameters
        ----------
        sigma : float or Fraction
            Deviation before rounding, in units of the statistic, above 0, at most ``LARGEST_SCALE * grid``.
        grid : float
            A power of two (`grid_below`).

        Returns
        -------
        float64[count]
            Exact multiples of `grid`.
        """
        steps = self.gaussian_integers(name, count, sigma=steps_of("sigma", sigma, grid), start=start)
        return steps.astype(np.float64) * np.float64(grid)

    def pick(
        self, name: str, candidates: Candidates, *, start: int = 0, allowed: Callable[[int], bool] = lambda index: True
    ) -> int:
        """An index by the exponential mechanism, ``P(i) ~ exp(scores[i] / scale)``, among those that are allowed.

        Candidates are drawn without replacement until one is allowed. The first allowed one of such a sequence has the
        distribution of the mechanism among the allowed ones alone, so that only a few need to be asked about.

        Where one record changes each score by at most 1, the pick is ``2 / scale``-bounded-range. It compares a uniform
        of 256 bits with exact sums of certified weights. `dpdist.privacy.selection` says what the pick costs as a
        Gaussian mechanism, and how near it is to the exponential mechanism.
        Raises ValueError: no candidate is left that is allowed.

        Parameters
        ----------
        candidates : Candidates
            They are the same after the pick: the picked one is still among them.
        start : int
            Number of the pick in the stream `name`; candidates that are not allowed take the numbers after it.
        allowed : callable
            A public rule. At least one index is allowed.
        """
        address, _, start = _checked(name, 1, start)
        refused: list[int] = []
        try:
            while True:
                words = self._words(address, 4, 4 * start).tolist()
                index = candidates.at(sum(word << 64 * place for place, word in enumerate(words)))
                if allowed(index):
                    return index
                candidates.remove(index)
                refused.append(index)
                start += 1
        finally:
            for index in refused:
                candidates.restore(index)

    def _sum_of_digits(self, name: str, count: int, start: int, digits: _thresholds.Digits) -> NDArray[np.int64]:
        address, count, start = _checked(name, count, start)
        values = np.zeros(count, dtype=np.int64)
        for offset in range(0, count, _CHUNK):
            piece = values[offset : offset + _CHUNK]
            for level, (factor, table) in enumerate(digits):
                stream = address + b"\0digit %d" % level if level else address
                words = self._words(stream, piece.size, start + offset)
                second_words = partial(self._words, stream + _SECOND, piece.size, start + offset)
                piece += factor * table.draw(words, second_words)
        return values

    def _words(self, address: bytes, count: int, start: int) -> NDArray[np.uint64]:
        subkey = hmac.digest(self._key, address, "sha256")
        block, skip = divmod(start, 2)
        encryptor = Cipher(algorithms.AES(subkey), modes.CTR(block.to_bytes(16, "big"))).encryptor()
        words = np.empty(skip + count + 2, dtype="<u8")  # update_into asks for the room of one more block
        target, size = words.data.cast("B"), 8 * (skip + count)
        for at in range(0, size, len(_ZEROS)):
            zeros = memoryview(_ZEROS)[: size - at]
            encryptor.update_into(zeros, target[at : at + len(zeros) + 16])
        return words[skip : skip + count].astype(np.uint64, copy=False)


def _checked(name: str, count: int, start: int) -> tuple[bytes, int, int]:
    """Check a window of a stream; NUL separates a name from the streams derived from it."""
    count, start = operator.index(count), operator.index(start)
    if count < 0 or start < 0:
        raise ValueError(f"start and count must not be negative, got start={start}, count={count}")
    if "\0" in name:
        raise ValueError(f"a noise name must not contain a NUL character, got {name!r}")
    return name.encode(), count, start


def _multiply_high(words: NDArray[np.uint64], factor: int) -> NDArray[np.uint64]:
    """``floor(words * factor / 2**64)`` in 32-bit halves."""
    half, mask = np.uint64(32), np.uint64(2**32 - 1)
    upper, lower = words >> half, words & mask
    factor_upper, factor_lower = np.uint64(factor >> 32), np.uint64(factor & (2**32 - 1))
    middle = upper * factor_lower + (lower * factor_lower >> half)
    carry = lower * factor_upper + (middle & mask)
    product: NDArray[np.uint64] = upper * factor_upper + (middle >> half) + (carry >> half)
    return product
