"""Keyed hashes of many values at once: 128 bits by AES, so that nobody without the key can tell what was hashed.

A hash is the CBC-MAC of a message in blocks of 16 bytes. Messages begin with their length, or all have one length; then
none is the beginning of another, and CBC-MAC is a pseudorandom function [1]_. Two of q messages have one hash with
probability q^2 / 2^128.

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
_HEAD = 12  # bytes of a text in its first block, after its length


class KeyedHash:
    """Hashes under a key of their own, derived from the key of an attempt and a name."""

    def __init__(self, noise: Noise, name: str) -> None:
        key = noise.words(name, 4).tobytes()
        self._encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()

    def of_texts(self, starts: NDArray[np.int64], lengths: NDArray[np.int64], data: NDArray[np.uint8]) -> Hashes:
        """Hashes of texts, which lie at `starts` in `data`."""
        blocks = np.zeros((len(starts), _BLOCK), np.uint8)
        blocks[:, : _BLOCK - _HEAD] = lengths.astype("<u4").view(np.uint8).reshape(-1, _BLOCK - _HEAD)
        blocks[:, _BLOCK - _HEAD :] = _bytes_at(data, starts, lengths, _HEAD)
        state, done = self._encrypt(blocks.view(np.uint64)), _HEAD
        while (left := np.flatnonzero(lengths > done)).size:
            more = _bytes_at(data, starts[left] + done, lengths[left] - done, _BLOCK)
            state[left] = self._encrypt(state[left] ^ more.view(np.uint64))
            done += _BLOCK
        return state

    def of_rows(self, hashes: Hashes, columns: Iterable[np.ndarray]) -> Hashes:
        """Hashes of rows: a hash and the values of some columns of fixed width."""
        values = [np.ascontiguousarray(column).view(np.uint8).reshape(len(hashes), -1) for column in columns]
        row = np.concatenate(values, axis=1) if values else np.zeros((len(hashes), 0), np.uint8)
        state = self._encrypt(hashes)
        for start in range(0, row.shape[1], _BLOCK):
            block = np.zeros((len(hashes), _BLOCK), np.uint8)
            piece = row[:, start : start + _BLOCK]
            block[:, : piece.shape[1]] = piece
            state = self._encrypt(state ^ block.view(np.uint64))
        return state

    def _encrypt(self, blocks: Hashes) -> Hashes:
        secret = self._encryptor.update(np.ascontiguousarray(blocks).tobytes())
        return np.frombuffer(bytearray(secret), "<u8").reshape(-1, 2).astype(np.uint64, copy=False)


def _bytes_at(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], width: int
) -> NDArray[np.uint8]:
    """The first bytes of texts, zero beyond their ends, shape (texts, width)."""
    places = np.arange(width)
    if not data.size:
        return np.zeros((len(starts), width), np.uint8)
    found = data.take(starts[:, None] + places, mode="clip")
    found[places >= lengths[:, None]] = 0
    return found
