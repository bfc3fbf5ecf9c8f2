"""The stages of a central mixing release: confirm the classes, mix, finish, write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dpdist.cluster.executor import Deferred, Tasks
from dpdist.data.records import slices
from dpdist.errors import CheckFailed
from dpdist.families.base.attempt import Attempt, ReleasedRecords, write_records
from dpdist.families.base.family import Stage
from dpdist.families.mixing.classes import (
    ClassCodes,
    Classes,
    MixedClass,
    MixingPlanT,
    Mixtures,
    Restorations,
    ScaledClasses,
    class_sums,
    confirm,
    gather,
    note_left_out,
)
from dpdist.families.mixing.federated.stages import begin_round, collect
from dpdist.families.mixing.mixing_plan import MixingPlan
from dpdist.families.mixing.mixture import Mixer, Rows, block_of, piece_of
from dpdist.families.mixing.restore import MixtureSums, Restoration, join_sums, piece_sums, restoration, total_sums
from dpdist.families.mixing.scaling import Encoding, MomentPlan, Moments, noisy_moments
from dpdist.families.mixing.spec import MixingSpec
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.arrays import Codes, joined, spans_of
from dpdist.privacy.noise import Noise

MixingAttempt = Attempt[MixingSpec, MixingPlan]


def stages(plan: MixingPlan) -> Sequence[Stage[MixingSpec, Any]]:
    """The stages of a mixing release, in order: those of a curator, or of the coordinator of clients."""
    first, second = (confirm_classes, mix) if plan.spec.federated is None else (begin_round, collect)
    return Stage("classes", first), Stage("mixtures", second), Stage("records", finish), Stage("write", write_records)


def confirm_classes(attempt: MixingAttempt) -> ScaledClasses:
    """Gather and confirm the classes, and draw the moments. Raises DataError, CheckFailed: no class was confirmed."""
    plan = attempt.plan
    classes = gather(attempt)
    confirmed = confirm(attempt, classes.sizes).outcomes
    if not any(confirmed):
        raise CheckFailed(
            "no class of mixing.classes has its declared minimum confirmed, so nothing is published: declare less, "
            "from public knowledge. The charge stays spent"
        )
    encoding, clip = plan.encoding, plan.clip
    if plan.moments is not None:
        moments = attempt.stored(Moments, partial(_draw_moments, attempt, plan.moments, classes))
        divide = attempt.spec.mixing.scaling == "standardised"
        encoding = moments.scaled(encoding, divide=divide)
        clip = clip if clip is not None else moments.norm(divide=divide)
    if clip is None:
        raise ValueError("a plan without moments has a clipping norm")
    attempt.public["clip"] = clip
    note_left_out(attempt, confirmed)
    return ScaledClasses(classes, confirmed, encoding, clip)


def _draw_moments(attempt: MixingAttempt, moments: MomentPlan, classes: Classes) -> Moments:
    plan, records = attempt.plan, sum(classes.sizes)
    minimum = sum(part.mixtures.minimum for part in plan.classes)
    return noisy_moments(attempt.noise, plan.encoding, records, classes.sums, moments, minimum=minimum)


def mix(attempt: MixingAttempt) -> Mixtures:
    """The noisy mixtures of every confirmed class, in the workers' memory, and how to restore their spread."""
    spec, plan, found = attempt.spec, attempt.plan, attempt.result(ScaledClasses)
    attempt.before_noise()
    classes = _mixed(attempt, found)

    def restore() -> Restorations:
        sigma, sums = plan.sigma_over_clip * found.clip, _sums(attempt, classes, found.encoding)
        return Restorations(
            {k: restoration(one, found.encoding, order=plan.order, sigma=sigma) for k, one in sums.items()}
        )

    restorations = attempt.stored(Restorations, restore) if spec.mixing.spread == "restored" else Restorations({})
    return Mixtures(classes, found.encoding, restorations, plan.label_sigma)


def _mixed(attempt: MixingAttempt, found: ScaledClasses) -> tuple[MixedClass, ...]:
    """The mixtures of each confirmed class."""
    plan, mixed = attempt.plan, []
    for place, part in enumerate(plan.classes):
        if not found.confirmed[place]:
            continue
        sigma = plan.sigma_over_clip * found.clip
        mixer = Mixer(order=plan.order, clip=found.clip, sigma=sigma, name=f"mixing/{part.code}")
        block = block_of(part.mixtures.records, width=plan.encoding.width, slots=attempt.executor.slots)
        stage = f"mixing {plan.spec.mixing.label} {place + 1} of {len(plan.classes)}"
        with attempt.stage(stage) as progress:
            task = attempt.executor.tasks("mixing")
            how = task.constant("how", (found.encoding, mixer, attempt.key))
            spans = [(at, min(at + block, part.mixtures.records)) for at in range(0, part.mixtures.records, block)]
            tasks = [task("block", _mix, how, found.classes.codes, place, *span) for span in spans]
            mixed.append(MixedClass(place, attempt.executor.persist(tasks, progress=progress), block))
    return tuple(mixed)


def _mix(how: tuple[Encoding, Mixer, KeyRef], codes: ClassCodes, place: int, start: int, stop: int) -> Rows:
    encoding, mixer, key = how
    noise = load_noise(key)
    return mixer.finish(noise, class_sums(codes[place], encoding, mixer, noise, start, stop), start)


def _sums(attempt: MixingAttempt, classes: Sequence[MixedClass], encoding: Encoding) -> dict[int, MixtureSums]:
    """Number, sum and products of the mixtures of each class."""
    executor, piece = attempt.executor, piece_of(encoding.width)
    made = [sums_of_mixtures(executor.tasks("spread"), one.blocks, block=one.block, piece=piece) for one in classes]
    return dict(zip((one.place for one in classes), executor.compute(made), strict=True))


def sums_of_mixtures(task: Tasks, blocks: Sequence[Deferred], *, block: int, piece: int) -> Deferred:
    """Task that finds the `MixtureSums` of one class, in an order that does not depend on the blocks."""
    sums = [task("sums", piece_sums, rows, number * block // piece, piece) for number, rows in enumerate(blocks)]
    return task("total", total_sums, task.tree("add", join_sums, sums))


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
        task("part", spans_of, [released[number] for number, _, _ in pieces], [(a, b) for _, a, b in pieces])
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
    return joined(
        _finished(finishing, mixtures[a : a + piece], noise, start + a) for a in range(0, len(mixtures), piece)
    )


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
