"""One attempt at a release: what its stages share, and their results so far, by type."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

import pyarrow as pa

from dpdist.cluster.executor import Deferred, Executor
from dpdist.data.records import Located, Opened, Records
from dpdist.data.weighted import WeightedRecords
from dpdist.families.base.bounding import bounded
from dpdist.families.base.family import PlanT, SpecT, Stage
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise
from dpdist.publish.part_format import FileRecord, PartFormat, PartRecord
from dpdist.publish.parts import Moved, decode, part_name, write_part
from dpdist.spec.schema import Schema
from dpdist.storage.store import Store
from dpdist.storage.stored import Stored

log = logging.getLogger("dpdist")

Progress = Callable[[str, int, int], None]  # called with (stage, finished steps, all steps)

ResultT = TypeVar("ResultT")


def drawing_key(attempt: str) -> str:
    """The public drawing key of an attempt, in hexadecimal."""
    return hashlib.sha256(b"dpdist drawing key\0" + attempt.encode()).hexdigest()


StorableT = TypeVar("StorableT", bound=Stored)


def silent(stage: str, done: int, total: int) -> None:
    """Report no progress."""


@dataclass
class Attempt(Generic[SpecT, PlanT]):
    """What the stages of one attempt share."""

    # what is released, from what, and where it computes
    spec: SpecT
    plan: PlanT
    table: Opened
    executor: Executor
    key: KeyRef  # where workers find the key of the attempt
    id: str
    work: Store  # confidential
    output: Store  # the release
    progress: Progress
    before_noise: Callable[[], object]  # tells the ledger that records are read or noise is drawn: the charge stays
    operator: dict[str, Any] = field(default_factory=dict)  # what only the operator may see; ends in the run record
    # public facts found on the way, such as the outcomes of noisy checks; they end in the manifest's parameters
    public: dict[str, Any] = field(default_factory=dict)
    parts: tuple[PartRecord, ...] = ()  # the written parts of the release, once they are
    files: tuple[FileRecord, ...] = ()  # what is released beside them
    # called with the manifest's SHA-256 before the ledger commits: where others must agree to it
    before_commit: Callable[[str], None] = lambda digest: None
    # digests of the contract of the data set, which the spec is a part of, and of the public tables that are read
    contract: str | None = None
    public_tables: str | None = None
    form: PartFormat | None = None  # of the records, where it follows from what was measured; else the plan's
    open: Callable[[Schema], Opened] | None = None  # opens the table to read it by another schema
    _results: dict[type, object] = field(default_factory=dict)

    @property
    def noise(self) -> Noise:
        """The noise of the attempt; the ledger learns of it before it is handed out."""
        self.before_noise()
        return load_noise(self.key)

    @cached_property
    def located(self) -> Located:
        """The table where tasks find its rows; the ledger learns of it before they are counted."""
        self.before_noise()
        with self.stage("locating rows") as progress:
            return self.table.on(self.executor, progress=progress)

    @cached_property
    def records(self) -> Records:
        """What passes read: the table bounded by unit, or with each record as often as its weight says."""
        unit, weight = self.spec.unit, self.spec.weight
        if unit is not None:
            return bounded(
                self.executor, self.located, at_most=unit.at_most, key=self.key, following=self.spec.following
            )
        (records,) = self.located.sides
        return records if weight is None else WeightedRecords(records, weight)

    def read_by(self, schema: Schema) -> Records:
        """The table as read by another schema. Raises DataError: its columns do not fit that schema."""
        if self.open is None:
            raise ValueError("the records of this attempt are encoded already")
        (records,) = self.open(schema).on(self.executor).sides
        return records

    def become(self, plan: PlanT) -> None:
        """Go on with a plan, and its spec, that an earlier stage has completed."""
        if self.open is not None:
            self.table = self.open(plan.spec.table)
        self.plan, self.spec = plan, plan.spec  # type: ignore[assignment]
        for name in ("located", "records"):
            self.__dict__.pop(name, None)

    @property
    def drawing_key(self) -> KeyRef:
        """The key with which records are drawn from a public model: public, and independent of the noise.

        It is a hash of the attempt's id, which was fixed before a record was read; of a fixed test key where there is
        one, so that tests can be repeated.
        """
        return KeyRef.fixed(drawing_key(self.key.uri if self.key.is_fixed else self.id))

    def run(self, stage: Stage[SpecT, PlanT]) -> object:
        """Run a stage, keep its result for later ones and return it."""
        result = stage.run(self)
        if result is not None:
            self.keep(result)
        return result

    def keep(self, result: object) -> None:
        """Keep the result of a stage for later ones."""
        self._results[type(result)] = result

    def result(self, kind: type[ResultT]) -> ResultT:
        """The result of this type that an earlier stage returned. Raises LookupError: no stage has returned one; the
        stages of the family are in another order.
        """
        found = self._results.get(kind)
        if not isinstance(found, kind):
            raise LookupError(f"no stage before this one has returned a {kind.__name__}")
        return found

    def stored(self, kind: type[StorableT], make: Callable[[], StorableT]) -> StorableT:
        """A result that is drawn or computed once: read back if stored, else made, stored once and read back.

        It is kept, as are the results that stages return.
        """
        if self.work.exists(kind.FILE):
            content = self.work.read_bytes(kind.FILE)
        else:
            content = self.work.write_exclusive(kind.FILE, make().to_bytes())
        found = kind.from_bytes(content)
        self.keep(found)
        return found

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[[int, int], None]]:
        """Time a part of the work for the operator and forward its progress."""
        start = time.perf_counter()
        log.info("stage started", extra={"stage": name, "attempt": self.id})
        self.progress(name, 0, 1)
        yield lambda done, total: self.progress(name, done, total)
        self.progress(name, 1, 1)
        seconds = round(time.perf_counter() - start, 3)
        self.operator.setdefault("seconds", {})[name] = seconds
        log.info("stage finished", extra={"stage": name, "attempt": self.id, "seconds": seconds})


_How = tuple[Schema, PartFormat, Store, str, KeyRef, Moved | None]


@dataclass(frozen=True, eq=False)
class ReleasedRecords:
    """The records of a release before they are written."""

    parts: Sequence[Deferred]  # of Codes: part p holds the released records from ``p * output.rows_per_part`` on
    executor: Executor | None = None  # where the parts are, if not with the executor of the attempt
    key: KeyRef | None = None  # of the values in their bins, if not that of the attempt
    moved: Moved | None = None  # of values in bins that are not drawn each by itself


def write_records(attempt: Attempt[Any, Any]) -> None:
    """Write the released records in parts of a fixed number of rows."""
    released, plan, rows = attempt.result(ReleasedRecords), attempt.plan, attempt.spec.output.rows_per_part
    executor = released.executor or attempt.executor
    with attempt.stage("writing") as progress:
        task = executor.tasks("write")
        key, moved = released.key or attempt.key, released.moved
        how = task.constant("how", (plan.released, attempt.form or plan.form, attempt.output, attempt.id, key, moved))
        parts = [task("part", _write, how, part, index, index * rows) for index, part in enumerate(released.parts)]
        attempt.parts = tuple(executor.compute(parts, progress=progress))


def write_tables(attempt: Attempt[Any, Any], tables: Iterable[pa.Table]) -> None:
    """Write tables of statistics, a part each."""
    with attempt.stage("writing"):
        named = ((part_name(attempt.id, index), table) for index, table in enumerate(tables))
        attempt.parts = tuple(write_part(attempt.output, name, table) for name, table in named)


def _write(how: _How, codes: Codes, index: int, start: int) -> PartRecord:
    schema, form, store, attempt, key, moved = how
    table = decode(schema, codes, form=form, noise=load_noise(key), start=start, moved=moved)
    return write_part(store, part_name(attempt, index), table)
