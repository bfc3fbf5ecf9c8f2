"""Tasks that decode and write the parts of a release, each on the worker that holds its records."""

from __future__ import annotations

from collections.abc import Sequence

from dpdist.cluster.executor import Executor
from dpdist.cluster.tasks import Deferred
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.arrays import Codes
from dpdist.publish.parts import PartFormat, PartRecord, decode, part_name, write_part
from dpdist.schema.schema import Schema
from dpdist.storage.store import Store


def written_parts(
    executor: Executor,
    parts: Sequence[Deferred],
    *,
    schema: Schema,
    form: PartFormat,
    store: Store,
    attempt: str,
    key: KeyRef,
    rows_per_part: int,
    name: str = "write",
) -> list[Deferred]:
    """Tasks that write the parts of a release.

    Parameters
    ----------
    executor : Executor
    parts : sequence of Deferred of Codes
        Part p holds the released records from ``p * rows_per_part`` on.
    schema : Schema
    form : PartFormat
    store : Store
        The release's folder.
    attempt : str
        Id of the attempt.
    key : KeyRef
        For integers drawn within bins.
    rows_per_part : int
    name : str
        Name of the stage, with which every task's name begins.

    Returns
    -------
    list of Deferred of PartRecord
    """
    task = executor.tasks(name)
    how = task.constant("how", (schema, form, store, attempt, key))
    return [task("part", _write, how, part, index, index * rows_per_part) for index, part in enumerate(parts)]


def _write(how: tuple[Schema, PartFormat, Store, str, KeyRef], codes: Codes, index: int, start: int) -> PartRecord:
    schema, form, store, attempt, key = how
    table = decode(schema, codes, form=form, noise=load_noise(key), start=start)
    return write_part(store, part_name(attempt, index), table)
