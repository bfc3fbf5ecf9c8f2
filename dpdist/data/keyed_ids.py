"""The ids of units, and which records of each unit are used.

The column of the ids is read beside the attributes. What is one whole number is one id, whatever a file stores: 7,
"7", 7.0, "7.0" and "007"; and so is what is one text, composed or decomposed (NFC, NFD). A float that may have been
rounded (of 2^53 or more; of 32 bits, of 2^24 or more; of 16 bits, of 2^11 or more), or that has a fraction, is no id:
nobody knows which integer or text it was. A task that reads records hashes the ids with the attempt's key before it
ends, and passes on hashes only.

Of a unit with too many records a keyed choice keeps some. It depends on the unit's own records alone: equal records are
numbered, and each gets a keyed hash of id, values and number; the smallest are kept. So it does not matter in which
files, partitions or order the records of a unit are.

A hash has 128 bits, by AES: nobody without the key can tell what was hashed. It is the CBC-MAC of a message in blocks
of 16 bytes. The first block of a message has its length, or all messages under a key have one length; then none is the
beginning of another, and CBC-MAC is a pseudorandom function [1]_. Two of q messages have one hash with a probability of
about q^2 / 2^128.

References
----------
.. [1] Bellare, Kilian, Rogaway, *The security of the cipher block chaining message authentication code*, 2000.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from dpdist.data.texts import NO_TEXT, decoded, is_text
from dpdist.errors import ColumnMismatch

if TYPE_CHECKING:
    from dpdist.privacy.arrays import Codes
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


def check_type_beside(where: str, name: str, kind: pa.DataType) -> None:
    """Refuse a column that is not of integers, texts or floats, which integers become where some are missing. Raises
    ColumnMismatch.
    """
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not any(fits(value) for fits in (is_text, pa.types.is_integer, pa.types.is_floating, pa.types.is_null)):
        raise ColumnMismatch(
            f"{where}: the column {name!r} (unit.by or weight.by) has the type {kind}: write ids as integers or texts, "
            "and weights as integers or floats"
        )


def ids_of(
    batch: pa.RecordBatch, beside: str | None, *, strip: bool = False, empty_is_missing: bool = False
) -> pa.Array | None:
    """The ids (or weights) of a batch, null where none exists; None where no column has any.

    Integers from 0 that are hashed as such are int64, floats float64 (of 32 bits infinite where they may have been
    rounded), all others texts.
    """
    if beside is None:
        return None
    column = decoded(batch.column(beside))
    if pa.types.is_integer(column.type) and not (pa.types.is_uint64(column.type) or _is_outside(column)):
        return column.cast(pa.int64())
    if pa.types.is_floating(column.type):
        numbers = column.cast(pa.float64())
        if not pa.types.is_float64(column.type):
            exact = _EXACT_16 if pa.types.is_float16(column.type) else _EXACT_32
            rounded = pc.greater_equal(pc.abs(numbers), exact)
            numbers = pc.if_else(rounded, pc.multiply(pc.sign(numbers), math.inf), numbers)
        return pc.if_else(pc.is_nan(numbers), pa.scalar(None, pa.float64()), numbers)
    texts = column.cast(pa.large_string())
    if strip:
        texts = pc.utf8_trim_whitespace(texts)
    if empty_is_missing:
        texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.large_string()), texts)
    return texts


def canonical(ids: pa.Array) -> pa.Array:
    """The one form of each id that `ids_of` gives: int64 or texts, null where none exists."""
    if pa.types.is_float64(ids.type):
        ids = _whole(ids)
        return ids.cast(pa.large_string()) if _is_outside(ids) else ids
    if pa.types.is_int64(ids.type):
        return ids
    if _is_true(pc.ascii_is_decimal(ids)) and _is_true(pc.invert(pc.starts_with(ids, "0"))):
        return ids
    ids = pc.if_else(pc.equal(ids, NO_TEXT), pa.scalar(None, ids.type), ids)
    texts = ids if _is_true(pc.string_is_ascii(ids)) else pc.utf8_normalize(ids, form="NFC")
    plain = pc.replace_substring_regex(texts, r"^\+?(-?)0*([0-9])", r"\1\2")
    texts = pc.if_else(pc.match_substring_regex(texts, _WHOLE), plain, texts)
    as_floats = pc.match_substring_regex(texts, _AS_FLOAT)
    if not _is_true(pc.invert(as_floats)):
        numbers = _whole(pc.if_else(as_floats, texts, "0").cast(pa.float64())).cast(pa.large_string())
        texts = pc.if_else(as_floats, numbers, texts)
    return pc.if_else(pc.equal(texts, "-0"), "0", texts)


def _whole(numbers: pa.Array) -> pa.Array:
    """Whole numbers as int64, null where a float has a fraction or may have been rounded."""
    known = pc.and_(pc.equal(numbers, pc.trunc(numbers)), pc.less(pc.abs(numbers), _EXACT))
    return pc.if_else(known, numbers, pa.scalar(None, pa.float64())).cast(pa.int64())


def _is_true(mask: pa.Array) -> bool:
    """Whether all of a mask that is not null is true."""
    return bool(pc.all(mask).as_py() is not False)


_EXACT, _EXACT_32, _EXACT_16 = 2.0**53, 2.0**24, 2.0**11
"""Floats (of 32 and of 16 bits) below it hold every whole number."""

_WHOLE = r"^[+-]?[0-9]+$"
_AS_FLOAT = r"^[+-]?[0-9]+(\.0*|(\.[0-9]*)?[eE][+-][0-9]+)$"
"""Numbers as programs write floats; 12e4 is a text, such as some of hexadecimal digits are."""


@dataclass(frozen=True, eq=False, repr=False)
class UnitHashes:
    """The keyed hashes of a choice: of ids, of records, and of equal records by their number."""

    ids: KeyedHash
    records: KeyedHash
    numbers: KeyedHash

    @classmethod
    def of(cls, noise: Noise) -> UnitHashes:
        """Those of an attempt."""
        return cls(*(KeyedHash(noise, f"units/{name}") for name in ("ids", "records", "numbers")))

    def of_ids(self, ids: pa.Array) -> tuple[Hashes, NDArray[np.bool_] | None]:
        """Hashes of ids as `ids_of` gives them, and whether there is an id; None where all have one."""
        ids = canonical(ids)
        known = pc.is_valid(ids).to_numpy(zero_copy_only=False) if ids.null_count else None
        if pa.types.is_int64(ids.type):
            whole = ids if known is None else pc.fill_null(ids, 0)
            return self.ids.of_integers(whole.to_numpy(zero_copy_only=False)), known
        texts = pc.fill_null(ids, "")
        ends = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
        data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)
        return self.ids.of_texts(ends[:-1], np.diff(ends), data), known

    def kept(self, units: Hashes, values: NDArray[np.uint8], *, at_most: int) -> NDArray[np.intp]:
        """Rows that are used: all of a unit with at most this many, else a keyed choice. `values` has the bytes of the
        codes of each row.
        """
        order, group = _grouped(units)
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        sizes = np.diff(starts, append=len(order))
        many = np.repeat(sizes > at_most, sizes)
        rows, group = order[many], group[many]
        digests = self.records.of_values(units.take(rows, axis=0), values.take(rows, axis=0))
        number = np.zeros(len(rows), np.int64)  # of each row among the equal ones of its unit
        first = np.sort(digests[:, 0])
        if (first[1:] == first[:-1]).any():
            by_value, value = _grouped(digests)
            number[by_value] = _places(value)
        priority = self.numbers.of_values(digests, number.view(np.uint8).reshape(-1, 8))
        chosen = _ordered(group, priority)[_places(group) < at_most]
        return np.concatenate([order[~many], rows.take(chosen)])

    def arranged(
        self, units: Hashes, codes: Codes, by: NDArray[np.integer] | None, *, at_most: int
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Rows that are used, unit by unit, and the place of each in its unit.

        In a unit they are in the order of `by`, equal ones in a keyed order, and the first `at_most` are used. The
        order depends on the unit's own records alone, as in `kept`.
        """
        order, group = _grouped(units)
        number = np.empty(len(order), np.intp)
        number[order] = group
        digests = self.records.of_rows(units, codes)
        first = np.zeros(len(order), np.int64) if by is None else by
        rows = np.lexsort((digests[:, 1], digests[:, 0], first, number))
        places = _places(number[rows])
        return rows[places < at_most], places[places < at_most]


def _is_outside(integers: pa.Array) -> bool:
    """Whether some are negative or have too many digits to be hashed as integers."""
    ends = pc.min_max(integers)
    least, most = (ends[name].as_py() or 0 for name in ("min", "max"))
    return bool(least < 0 or most >= 10**LONGEST)


def _grouped(hashes: Hashes) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """An order in which equal hashes stand together, and the number of the group of each place in it."""
    order, alike = _sorted(hashes[:, 0])
    changes = _changes(hashes.take(order, axis=0))
    if (alike & changes).any():  # two hashes that begin alike
        order = np.lexsort((hashes[:, 1], hashes[:, 0]))
        changes = _changes(hashes.take(order, axis=0))
    return order, np.cumsum(np.concatenate([np.zeros(min(len(order), 1), np.intp), changes]), dtype=np.intp)


def _ordered(group: NDArray[np.intp], priority: Hashes) -> NDArray[np.intp]:
    """An order by group, and in a group by priority."""
    bits = np.uint64(int(group.max(initial=0)).bit_length())
    order, alike = _sorted(group.astype(np.uint64) << (np.uint64(63) - bits) | priority[:, 0] >> (bits + np.uint64(1)))
    return np.lexsort((priority[:, 1], priority[:, 0], group)) if alike.any() else order


def _sorted(words: NDArray[np.uint64]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """An order by the first bits of words, and whether two that follow each other have the same.

    The last bits of each give way to its place, so that words are sorted alone, which takes a third of the time.
    """
    bits = np.uint64(max(len(words) - 1, 0).bit_length())
    key = words >> bits << bits | np.arange(len(words), dtype=np.uint64)
    key.sort()
    order = (key & ((np.uint64(1) << bits) - np.uint64(1))).view(np.intp)
    key >>= bits
    return order, key[1:] == key[:-1]


def _changes(hashes: Hashes) -> NDArray[np.bool_]:
    """Whether each hash is another than the one before, from the second on."""
    return np.asarray((hashes[1:, 0] != hashes[:-1, 0]) | (hashes[1:, 1] != hashes[:-1, 1]))


def _places(group: NDArray[np.intp]) -> NDArray[np.intp]:
    """The place of each element in its group, where groups stand together in ascending order."""
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    sizes = np.diff(starts, append=len(group))
    return np.arange(len(group)) - np.repeat(starts, sizes)
