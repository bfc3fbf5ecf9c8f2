"""Keyed hashes of many values at once: 128 bits by AES, so that nobody without the key can tell what was hashed.

A hash is the CBC-MAC of a message in blocks of 16 bytes. The first block of a message has its length, or all messages
under a key have one length; then none is the beginning of another, and CBC-MAC is a pseudorandom function [1]_. Two of
q messages have one hash with a probability of about q^2 / 2^128.

References
----------
.. [1] Bellare, Kilian, Rogaway, *The security of the cipher block chaining message authentication code*, 2000.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dpdist.privacy.noise import Noise

Hashes: TypeAlias = NDArray[np.uint64]
"""Two words for each value, shape (values, 2)."""

_BLOCK = 16
_HEAD = 12  # bytes of a text in its first block, before its length

LONGEST = 16
"""Digits of the integers that are hashed without making texts of them."""


class KeyedHash:
    """Hashes under a key of their own, derived from the key of an attempt and a name."""

    def __init__(self, noise: Noise, name: str) -> None:
        key = noise.words(name, 4).tobytes()
        self._encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()

    def of_texts(self, starts: NDArray[np.int64], lengths: NDArray[np.int64], data: NDArray[np.uint8]) -> Hashes:
        """Hashes of texts, which lie at `starts` in `data`."""
        padded = np.concatenate([data, np.zeros(_BLOCK, np.uint8)])
        head = _blocks(padded, starts, np.minimum(lengths, _HEAD)).view(np.uint32)
        head[:, _HEAD // 4] = lengths
        state, done = self._encrypt(head.view(np.uint64)), _HEAD
        while (left := np.flatnonzero(lengths > done)).size:
            more = _blocks(padded, starts[left] + done, np.minimum(lengths[left] - done, _BLOCK))
            state[left] = self._encrypt(state[left] ^ more)
            done += _BLOCK
        return state

    def of_rows(self, hashes: Hashes, columns: Iterable[np.ndarray]) -> Hashes:
        """Hashes of rows: a hash and the values of some columns of fixed width."""
        values = [np.ascontiguousarray(column).view(np.uint8).reshape(-1, column.itemsize) for column in columns]
        row = np.concatenate(values, axis=1) if values else np.zeros((len(hashes), 0), np.uint8)
        return self.of_values(hashes, row)

    def of_values(self, hashes: Hashes, values: NDArray[np.uint8]) -> Hashes:
        """Hashes of rows: a hash and as many bytes for each."""
        state = self._encrypt(hashes)
        for start in range(0, values.shape[1], _BLOCK):
            block = np.zeros((len(hashes), _BLOCK), np.uint8)
            piece = values[:, start : start + _BLOCK]
            block[:, : piece.shape[1]] = piece
            state ^= block.view(np.uint64)
            state = self._encrypt(state)
        return state

    def of_integers(self, values: NDArray[np.int64]) -> Hashes:
        """Hashes of integers, from 0 to 10^16 - 1, as `of_texts` of their decimal texts."""
        if not len(values):
            return np.empty((0, 2), np.uint64)
        least, most = len(str(values.min())), len(str(values.max()))
        if least == most:
            return self._of_digits(values, least)
        hashes, digits = np.empty((len(values), 2), np.uint64), np.searchsorted(_POWERS, values, "right") + 1
        for length in range(least, most + 1):
            rows = np.flatnonzero(digits == length)
            hashes[rows] = self._of_digits(values.take(rows), length)
        return hashes

    def _of_digits(self, values: NDArray[np.int64], length: int) -> Hashes:
        """Hashes of integers of this many digits."""
        filled = values.astype(np.uint64) * np.uint64(10 ** (LONGEST - length))
        high = filled // np.uint64(10**8)
        text = np.empty((len(values), 4), np.uint32)
        for place, eight in enumerate((high, filled - high * np.uint64(10**8))):
            eight = eight.astype(np.uint32)
            four = eight // np.uint32(10**4)
            text[:, 2 * place] = _FOUR_DIGITS.take(four)
            text[:, 2 * place + 1] = _FOUR_DIGITS.take(eight - four * np.uint32(10**4))
        blocks = text.view(np.uint64)
        rest = blocks[:, 1] >> np.uint64(32)
        blocks &= _MASKS[min(length, _HEAD)]
        blocks[:, 1] |= np.uint64(length << 32)
        state = self._encrypt(blocks)
        if length > _HEAD:
            state[:, 0] ^= rest & _MASKS[length - _HEAD, 0]
            state = self._encrypt(state)
        return state

    def _encrypt(self, blocks: Hashes) -> Hashes:
        secret = np.empty(blocks.nbytes + _BLOCK - 1, np.uint8)
        self._encryptor.update_into(np.ascontiguousarray(blocks).view(np.uint8).reshape(-1).data, secret.data)
        return secret[: blocks.nbytes].view("<u8").reshape(-1, 2).astype(np.uint64, copy=False)


def _blocks(padded: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Hashes:
    """Blocks that begin at `starts`, zero from `lengths` on."""
    windows = np.ndarray((len(padded) - _BLOCK + 1,), f"V{_BLOCK}", padded, strides=(1,))
    return windows.take(starts).view(np.uint64).reshape(-1, 2) & _MASKS[lengths]


_MASKS: Hashes = (255 * (np.arange(_BLOCK) < np.arange(_BLOCK + 1)[:, None])).astype(np.uint8).view(np.uint64)
"""What keeps the first bytes of a block, by their number."""

_POWERS = 10 ** np.arange(1, LONGEST)

_FOUR_DIGITS = np.frombuffer(b"".join(b"%04d" % number for number in range(10_000)), "<u4").astype(np.uint32)
"""The decimal texts of four digits."""
