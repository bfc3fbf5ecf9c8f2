"""The stage that turns mixtures into released records, of central and federated releases alike."""

from __future__ import annotations

from dpdist.cluster.tasks import Deferred
from dpdist.families.base.attempt import Attempt
from dpdist.families.base.writing import ReleasedRecords
from dpdist.families.mixing.classes import MixingPlanT
from dpdist.families.mixing.mixture import Rows
from dpdist.families.mixing.output import (
    Finishing,
    Released,
    assemble,
    finish_block,
    part_slices,
    vector_codes,
    with_label,
)
from dpdist.families.mixing.results import Mixtures
from dpdist.families.mixing.spec import MixingSpec
from dpdist.ledger.keys import KeyRef, load_noise


def finish(attempt: Attempt[MixingSpec, MixingPlanT]) -> ReleasedRecords:
    """Restore the spread, decode the mixtures or keep their vectors, and cut parts of a fixed number of rows."""
    spec, plan, mixtures = attempt.spec, attempt.plan, attempt.result(Mixtures)
    executor = mixtures.executor or attempt.executor
    task, label = executor.tasks("release"), spec.table.names.index(spec.mixing.label)
    codes = tuple(plan.classes[one.place].code for one in mixtures.classes)
    released: list[Deferred] = []
    rows: list[int] = []
    for number, one in enumerate(mixtures.classes):
        part = plan.classes[one.place]
        finishing = Finishing(
            encoding=mixtures.encoding,
            restoration=mixtures.restorations.by_class.get(one.place),
            decode=spec.mixing.release == "records",
            label=label,
            classes=codes,
            place=number,
            label_sigma=mixtures.label_sigma,
            name=f"mixing/{part.code}",
        )
        how = task.constant("how", (finishing, attempt.key))
        starts = range(0, part.mixtures.records, one.block)
        released += [task("block", _finish, how, block, at) for block, at in zip(one.blocks, starts, strict=True)]
        rows += [min(one.block, part.mixtures.records - start) for start in starts]
    task = executor.tasks("parts")
    parts = [
        task("part", assemble, [released[number] for number, _, _ in pieces], [(a, b) for _, a, b in pieces])
        for pieces in part_slices(rows, spec.output.rows_per_part)
    ]
    if spec.mixing.release == "records":
        return ReleasedRecords([task("codes", with_label, part, label, spec.label.dtype) for part in parts], executor)
    reach = (plan.released.attributes[0].bounds or (0, 0))[1]
    return ReleasedRecords([task("vectors", vector_codes, part, spec.label, reach=reach) for part in parts], executor)


def _finish(how: tuple[Finishing, KeyRef], mixtures: Rows, start: int) -> Released:
    finishing, key = how
    return finish_block(finishing, mixtures, load_noise(key), start=start)
