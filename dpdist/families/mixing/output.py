"""What is released of the mixtures: spread restored or not, decoded or not, labels, and parts of a fixed size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpdist.cluster.executor import Deferred
from dpdist.data.records import slices
from dpdist.families.base.attempt import Attempt, ReleasedRecords
from dpdist.families.mixing.classes import MixingPlanT, Mixtures
from dpdist.families.mixing.mixture import Rows, piece_of
from dpdist.families.mixing.restore import Restoration
from dpdist.families.mixing.scaling import Encoding
from dpdist.families.mixing.spec import MixingSpec
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise

LABEL_GRID = 2.0**-20  # grid of the published noise on labels


@dataclass(frozen=True, kw_only=True)
class Finishing:
    """What becomes of the mixtures of one class."""

    encoding: Encoding
    restoration: Restoration | None  # None releases mixtures as they are
    decode: bool  # whether to decode vectors into records
    classes: tuple[int, ...]  # codes of all released classes
    place: int  # which of them this is
    label_sigma: float  # deviation of the published noise on labels; 0 for none
    name: str  # address of the class's noise


def finish(attempt: Attempt[MixingSpec, MixingPlanT]) -> ReleasedRecords:
    """Restore the spread, decode the mixtures or keep their vectors, and cut parts: central and federated alike."""
    spec, plan, mixtures = attempt.spec, attempt.plan, attempt.result(Mixtures)
    executor, decode = mixtures.executor or attempt.executor, spec.mixing.release == "records"
    task = executor.tasks("release")
    codes = tuple(plan.classes[one.place].code for one in mixtures.classes)
    released: list[Deferred] = []
    rows: list[int] = []
    for number, one in enumerate(mixtures.classes):
        part = plan.classes[one.place]
        finishing = Finishing(
            encoding=mixtures.encoding,
            restoration=mixtures.restorations.by_class.get(one.place),
            decode=decode,
            classes=codes,
            place=number,
            label_sigma=mixtures.label_sigma,
            name=f"mixing/{part.code}",
        )
        how = task.constant("how", (finishing, attempt.key))
        starts = range(0, part.mixtures.records, one.block)
        released += [task("block", finish_block, how, block, at) for block, at in zip(one.blocks, starts, strict=True)]
        rows += [min(one.block, part.mixtures.records - start) for start in starts]
    task = executor.tasks("parts")
    parts = [
        task("part", assemble, [released[number] for number, _, _ in pieces], [(a, b) for _, a, b in pieces])
        for pieces in slices(rows, spec.output.rows_per_part)
    ]
    if decode:
        label = spec.table.names.index(spec.mixing.label)
        return ReleasedRecords([task("codes", _records, part, label, spec.label.dtype) for part in parts], executor)
    reach = (plan.released.attributes[0].bounds or (0, 0))[1]
    return ReleasedRecords([task("vectors", _vectors, part, reach, spec.label.dtype) for part in parts], executor)


def finish_block(how: tuple[Finishing, KeyRef], mixtures: Rows, start: int) -> Codes:
    """What is released of mixtures from `start` on: codes of the classes, then vectors, or codes of the others.

    It is made piece by piece to bound the memory.
    """
    finishing, noise, piece = how[0], load_noise(how[1]), piece_of(mixtures.shape[1])
    pieces = [_finished(finishing, mixtures[a : a + piece], noise, start + a) for a in range(0, len(mixtures), piece)]
    return assemble(pieces, [(0, piece)] * len(pieces))


def _finished(finishing: Finishing, mixtures: Rows, noise: Noise, start: int) -> Codes:
    vectors, classes = mixtures, finishing.classes
    if finishing.restoration is not None:
        vectors = finishing.restoration.apply(mixtures, noise, name=f"{finishing.name}/fill", start=start)
    one_hot = np.zeros((len(mixtures), len(classes)))
    one_hot[:, finishing.place] = 1.0
    if finishing.label_sigma:
        name, sigma, first = f"{finishing.name}/label", finishing.label_sigma, start * len(classes)
        drawn = noise.grid_gaussian(name, one_hot.size, sigma=sigma, grid=LABEL_GRID, start=first)
        one_hot += drawn.reshape(one_hot.shape)
    labels = np.array(classes, np.int64)[one_hot.argmax(axis=1)]
    return [labels, *(finishing.encoding.decode(vectors) if finishing.decode else [vectors])]


def assemble(blocks: Sequence[Codes], spans: Sequence[tuple[int, int]]) -> Codes:
    """The rows of some spans of blocks, in order."""
    pieces = [[column[a:b] for column in block] for block, (a, b) in zip(blocks, spans, strict=True)]
    return [np.concatenate(columns) for columns in zip(*pieces, strict=True)]


def _records(part: Codes, label: int, dtype: np.dtype[Any]) -> Codes:
    """Codes of all attributes, the class in its place in the schema."""
    labels, *codes = part
    codes.insert(label, labels.astype(dtype))
    return codes


def _vectors(part: Codes, reach: float, dtype: np.dtype[Any]) -> Codes:
    """Vectors as columns of numbers, and the class."""
    labels, vectors = part
    numbers = np.clip(vectors.T.astype(np.float64), -reach, reach)
    return [*(np.ascontiguousarray(column) for column in numbers), labels.astype(dtype)]
