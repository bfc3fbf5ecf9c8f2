"""What is released of the mixtures: spread restored or not, decoded or not, labels, and parts of a fixed size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from dpdist.errors import SpecError
from dpdist.families.mixing.mixture import Rows, piece_of
from dpdist.families.mixing.moments import LEAST_DEVIATION
from dpdist.families.mixing.restore import Restoration
from dpdist.families.mixing.scaling import Encoding
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise
from dpdist.spec.schema import Attribute, Schema

LABEL_GRID = 2.0**-20
"""Grid of the published noise on labels."""


@dataclass(frozen=True, kw_only=True)
class Finishing:
    """What becomes of the mixtures of one class."""

    encoding: Encoding
    restoration: Restoration | None  # None releases mixtures as they are
    decode: bool  # whether to decode vectors into records
    label: int  # place of the class attribute in the schema
    classes: tuple[int, ...]  # codes of all released classes
    place: int  # which of them this is
    label_sigma: float  # deviation of the published noise on labels; 0 for none
    name: str  # address of the class's noise


@dataclass(frozen=True, eq=False)
class Released:
    """Released rows: vectors, or the codes of all attributes but the class; and the codes of the classes."""

    vectors: Rows | None
    codes: Codes | None
    labels: NDArray[np.int64]


def finish_block(finishing: Finishing, mixtures: Rows, noise: Noise, *, start: int) -> Released:
    """What is released of mixtures `start` to ``start + t - 1`` of a class (float32[t, d]), made piece by piece to
    bound the memory. The noise fills up the spread and is published on labels.
    """
    piece = piece_of(mixtures.shape[1])
    pieces = [
        _finish(finishing, mixtures[at : at + piece], noise, start=start + at) for at in range(0, len(mixtures), piece)
    ]
    return assemble(pieces, [(0, len(one.labels)) for one in pieces])


def _finish(finishing: Finishing, mixtures: Rows, noise: Noise, *, start: int) -> Released:
    vectors = mixtures
    if finishing.restoration is not None:
        vectors = finishing.restoration.apply(mixtures, noise, name=f"{finishing.name}/fill", start=start)
    one_hot = np.zeros((len(mixtures), len(finishing.classes)))
    one_hot[:, finishing.place] = 1.0
    if finishing.label_sigma:
        drawn = noise.grid_gaussian(
            f"{finishing.name}/label",
            one_hot.size,
            sigma=finishing.label_sigma,
            grid=LABEL_GRID,
            start=start * len(finishing.classes),
        )
        one_hot += drawn.reshape(one_hot.shape)
    labels = np.array(finishing.classes, np.int64)[one_hot.argmax(axis=1)]
    if not finishing.decode:
        return Released(vectors, None, labels)
    return Released(None, finishing.encoding.decode(vectors), labels)


def part_slices(rows: Sequence[int], rows_per_part: int) -> Iterator[list[tuple[int, int, int]]]:
    """For each part the blocks it takes from, and which of their rows."""
    ends = np.cumsum([0, *rows])
    for start in range(0, int(ends[-1]), rows_per_part):
        stop = min(start + rows_per_part, int(ends[-1]))
        first, last = np.searchsorted(ends, start, side="right") - 1, np.searchsorted(ends, stop)
        yield [
            (n, max(start - int(ends[n]), 0), min(stop, int(ends[n + 1])) - int(ends[n]))
            for n in range(int(first), int(last))
        ]


def assemble(blocks: Sequence[Released], spans: Sequence[tuple[int, int]]) -> Released:
    """The rows of some spans of blocks, in order."""
    pairs = list(zip(blocks, spans, strict=True))
    labels = np.concatenate([block.labels[a:b] for block, (a, b) in pairs])
    vectors = [block.vectors[a:b] for block, (a, b) in pairs if block.vectors is not None]
    if vectors:
        return Released(np.concatenate(vectors), None, labels)
    codes = [[column[a:b] for column in block.codes or []] for block, (a, b) in pairs]
    return Released(None, [np.concatenate(columns) for columns in zip(*codes, strict=True)], labels)


def with_label(part: Released, label: int, dtype: np.dtype[Any]) -> Codes:
    """Codes of all attributes, the class in its place in the schema."""
    codes = list(part.codes or [])
    codes.insert(label, part.labels.astype(dtype))
    return codes


def vector_reach(encoding: Encoding, *, clip: float | None, order: int, sigma_over_clip: float) -> float:
    """Bound of the coordinates of released vectors, from public numbers: a power of two far beyond what noise reaches.
    `clip` is None where it follows from noisy moments.
    """
    norm = encoding.largest_norm / LEAST_DEVIATION if clip is None else clip
    return 2.0 ** math.ceil(math.log2(norm * math.sqrt(order) * (2 + 40 * sigma_over_clip)))


def vector_schema(encoding: Encoding, label: Attribute, *, reach: float) -> Schema:
    """The attributes of released vectors: a number for each coordinate, and the class. Raises SpecError: two
    coordinates would have the same name.
    """
    numbers = [{"name": name, "kind": "number", "bounds": (-reach, reach)} for name in encoding.names]
    plain = label.model_dump(exclude={"buckets"}, exclude_defaults=True)
    try:
        return Schema.model_validate({"attributes": [*numbers, plain]})
    except ValidationError:
        raise SpecError(
            "mixing.release: two columns of the vectors would have the same name, such as those of an attribute 'a=b' "
            "and of the value 'b' of an attribute 'a'; rename one in the schema"
        ) from None


def vector_codes(part: Released, label: Attribute, *, reach: float) -> Codes:
    """Vectors as columns of numbers, and the class."""
    if part.vectors is None:
        raise ValueError("these are records, not vectors")
    numbers = np.clip(part.vectors.T.astype(np.float64), -reach, reach)
    return [*(np.ascontiguousarray(column) for column in numbers), part.labels.astype(label.dtype)]
