"""A mixing release as task graphs: codes by class, mixtures in blocks, parts of a fixed number of rows.

The codes of the records (a few bytes each) are gathered by class; their vectors, many times larger, exist only inside
the tasks that sum them (`dpdist.families.mixing.sums`). Neither the partitions of the table nor the blocks change a
bit of what
is released. Building a graph computes nothing.
"""

from __future__ import annotations

import io
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from dpdist.cluster.tasks import Tasks
from dpdist.data.operators import Operator
from dpdist.families.mixing.discriminant import Discriminant, score
from dpdist.families.mixing.mixture import Mixer, Rows
from dpdist.families.mixing.moments import moment_sums
from dpdist.families.mixing.output import (
    Finishing,
    Released,
    assemble,
    finish_block,
    part_slices,
    vector_codes,
    with_label,
)
from dpdist.families.mixing.restore import join_sums, piece_sums, total_sums
from dpdist.families.mixing.scaling import Encoding
from dpdist.families.mixing.sums import SHARD_BYTES, class_sums
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.arrays import Codes
from dpdist.schema.schema import Attribute
from dpdist.storage.store import Store

ClassCodes = list[Codes]
"""The codes of the records of each class, the class attribute left out."""


# --- records by class ---


def class_operator(label: int, classes: Sequence[int]) -> Operator:
    """The codes of the records of some classes, in the order of the rows: `ClassCodes`.

    Parameters
    ----------
    label : int
        Place of the class attribute in the schema.
    classes : sequence of int
        Codes of the classes.
    """
    return Operator(name="classes", chunk=partial(_by_class, label=label, classes=tuple(classes)), combine=_joined)


def _by_class(codes: Codes, label: int, classes: tuple[int, ...]) -> ClassCodes:
    features = [column for place, column in enumerate(codes) if place != label]
    chosen = [np.flatnonzero(codes[label] == code) for code in classes]
    return [[column.take(rows) for column in features] for rows in chosen]


def _joined(a: ClassCodes, b: ClassCodes) -> ClassCodes:
    return [[np.concatenate(pair) for pair in zip(x, y, strict=True)] for x, y in zip(a, b, strict=True)]


@dataclass(frozen=True, eq=False, repr=False)
class ClassStatistics:
    """Records of each class, and sums over all of them; confidential.

    Parameters
    ----------
    sizes : tuple of int
    sums : tuple of int64
        Of each attribute, the class left out: see `dpdist.families.mixing.moments.moment_sums`. Empty if they are not
        needed.
    """

    sizes: tuple[int, ...]
    sums: tuple[NDArray[np.int64], ...]


def class_statistics(codes: Delayed, encoding: Encoding | None = None, *, name: str = "classes") -> Delayed:
    """Graph of the `ClassStatistics` of gathered codes, with the sums in a declared encoding if one is given."""
    return Tasks(name)("count", statistics, codes, encoding)


def statistics(codes: ClassCodes, encoding: Encoding | None = None) -> ClassStatistics:
    """The `ClassStatistics` of the codes of some classes."""
    sizes = tuple(len(part[0]) for part in codes)
    if encoding is None:
        return ClassStatistics(sizes, ())
    places = range(len(encoding.attributes))
    sums = tuple(reduce(operator.add, (moment_sums(encoding, i, part[i]) for part in codes)) for i in places)
    return ClassStatistics(sizes, sums)


# --- mixtures ---


def mixture_blocks(
    codes: Delayed,
    *,
    place: int,
    encoding: Encoding,
    mixer: Mixer,
    records: int,
    block: int,
    key: KeyRef,
    shard_bytes: int = SHARD_BYTES,
    name: str = "mixing",
) -> list[Delayed]:
    """Graphs of the mixtures of one class, block by block.

    Parameters
    ----------
    codes : Delayed of ClassCodes
    place : int
        Which of the classes.
    encoding : Encoding
    mixer : Mixer
    records : int
        Mixtures of the class.
    block : int
        Mixtures in a block: see `dpdist.families.mixing.sums.block_of`.
    key : KeyRef
    shard_bytes : int
        Memory for the vectors of a shard.
    name : str
        Stage name, the beginning of every task's name.

    Returns
    -------
    list of Delayed of float32[t, d]
    """
    task = Tasks(name)
    how = task.constant("how", (encoding, mixer, key, shard_bytes))
    return [
        task("block", _mix, how, codes, place, start, min(start + block, records)) for start in range(0, records, block)
    ]


def _mix(how: tuple[Encoding, Mixer, KeyRef, int], codes: ClassCodes, place: int, start: int, stop: int) -> Rows:
    encoding, mixer, key, shard_bytes = how
    noise = load_noise(key)
    sums = class_sums(codes[place], encoding, mixer, noise, start, stop, shard_bytes=shard_bytes)
    return mixer.finish(noise, sums, start)


def stored_blocks(store: Store, names: Sequence[str], *, name: str = "mixtures") -> list[Delayed]:
    """Graphs that read blocks of mixtures back from a store: float32[t, d] as NumPy files."""
    task = Tasks(name)
    return [task("load", load_rows, store, file) for file in names]


def load_rows(store: Store, name: str) -> Rows:
    """A block of mixtures from a store."""
    rows: Rows = np.load(io.BytesIO(store.read_bytes(name)), allow_pickle=False)
    return rows


def sums_of_mixtures(blocks: Sequence[Delayed], *, block: int, piece: int, name: str = "spread") -> Delayed:
    """Graph of the `MixtureSums` of the mixtures of one class, in an order that does not depend on the blocks.

    Parameters
    ----------
    blocks : sequence of Delayed of float32[t, d]
    block : int
        Mixtures in each of them but the last, a multiple of `piece`.
    piece : int
        Mixtures summed at a time: see `dpdist.families.mixing.sums.piece_of`.
    """
    task = Tasks(name)
    sums = [task("sums", piece_sums, rows, number * block // piece, piece) for number, rows in enumerate(blocks)]
    return task("total", total_sums, task.tree("add", join_sums, sums))


def scored(
    codes: Delayed, encoding: Encoding, clip: float, told: Sequence[Discriminant], *, name: str = "scores"
) -> list[Delayed]:
    """Graphs of how many gathered records each discriminant gets right; confidential."""
    task = Tasks(name)
    how = task.constant("how", (encoding, clip))
    return [task("score", _score, how, codes, one) for one in told]


def _score(how: tuple[Encoding, float], codes: ClassCodes, told: Discriminant) -> int:
    encoding, clip = how
    return score(codes, encoding, clip, told)


# --- what is released ---


def released_blocks(
    blocks: Sequence[Delayed], finishing: Finishing, *, block: int, key: KeyRef, name: str = "release"
) -> list[Delayed]:
    """Graphs of what is released of the mixtures of one class, block by block; `block` mixtures in each but the last.

    Returns
    -------
    list of Delayed of Released
    """
    task = Tasks(name)
    how = task.constant("how", (finishing, key))
    return [task("block", _finish_block, how, mixtures, number * block) for number, mixtures in enumerate(blocks)]


def released_parts(
    blocks: Sequence[Delayed], rows: Sequence[int], *, rows_per_part: int, name: str = "parts"
) -> list[Delayed]:
    """Graphs of the parts of a release, each of a fixed number of rows but the last.

    Parameters
    ----------
    blocks : sequence of Delayed of Released
        Of all classes, in order.
    rows : sequence of int
        Rows of each block.

    Returns
    -------
    list of Delayed of Released
    """
    task = Tasks(name)
    return [
        task("part", assemble, [blocks[number] for number, _, _ in pieces], [(a, b) for _, a, b in pieces])
        for pieces in part_slices(rows, rows_per_part)
    ]


def part_codes(parts: Sequence[Delayed], label: int, dtype: np.dtype[Any], *, name: str = "parts") -> list[Delayed]:
    """Graphs of the `Codes` of all attributes, the class in its place in the schema."""
    task = Tasks(name)
    return [task("codes", with_label, part, label, dtype) for part in parts]


def part_vectors(parts: Sequence[Delayed], label: Attribute, *, reach: float, name: str = "parts") -> list[Delayed]:
    """Graphs of the `Codes` of vectors: a column of numbers per coordinate, clipped to `reach`, and the class."""
    task = Tasks(name)
    return [task("vectors", vector_codes, part, label, reach=reach) for part in parts]


def _finish_block(how: tuple[Finishing, KeyRef], mixtures: Rows, start: int) -> Released:
    finishing, key = how
    return finish_block(finishing, mixtures, load_noise(key), start=start)
