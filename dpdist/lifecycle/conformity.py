"""Before a charge: the input keeps the contract, the paths lie apart, and an executor is opened.

How an input breaks the contract of its data set is found once, and told to its custodian alone.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from dpdist.cluster.executor import Executor, InProcess
from dpdist.data.inputs import Files, Input, source_of
from dpdist.data.operators import table_counts_operator
from dpdist.data.records import Opened
from dpdist.data.report import RowReport, check, check_weights
from dpdist.data.source import FoundFile, TableSource, beginnings, find_files, fingerprint_of, would_find
from dpdist.data.weighted import WeightedRecords
from dpdist.errors import DataError, DataNotFound, GuaranteeRefused, OutOfDomain, ReleaseConflict, SpecError
from dpdist.families.base.bounding import bounded
from dpdist.families.base.graph import table_pass
from dpdist.ledger import Books
from dpdist.ledger.keys import KeyRef
from dpdist.lifecycle.history import RUN_RECORD
from dpdist.limits import JSON_VALUES, MANIFEST_BYTES
from dpdist.publish.manifest import is_readable
from dpdist.publish.statement import require_few
from dpdist.spec.contract import Contract, months_in
from dpdist.spec.schema import Schema
from dpdist.spec.series import months_of, periods_of
from dpdist.spec.unit import WeightSpec
from dpdist.storage.files import absolute
from dpdist.storage.store import Store

if TYPE_CHECKING:
    from dpdist.families.base.plan import Plan
    from dpdist.privacy.arrays import Counts
    from dpdist.spec.release import ReleaseSpec


@dataclass(frozen=True, repr=False)
class Conformity:
    """What a whole pass over an input found. Confidential: it holds private counts."""

    fingerprint: str  # of the input
    problems: tuple[str, ...]  # why it does not keep the contract; empty where it does
    counts: dict[str, Any]  # rows read and kept, and by column the values that policies apply to
    months: tuple[str, ...] = ()  # of its files, where a record is in those of one month

    def lines(self) -> list[str]:
        """The counts in words; confidential."""
        counts = self.counts
        found = [f"{counts['rows_kept']:,} of {counts['rows_read']:,} rows are kept"]
        of_units = [name for name in ("rows_without_id", "rows_beyond_bound") if name in counts]
        found += [f"{counts[name]:,} {name.replace('_', ' ')}" for name in of_units]
        for name, of in counts["columns"].items():
            found.append(f"{name}: " + ", ".join(f"{number:,} {what.replace('_', ' ')}" for what, number in of.items()))
        found += [f"{rule}: broken by {count:,} rows" for rule, count in counts.get("rules", {}).items()]
        return [f"confidential: {line}" for line in found]

    def refuse(self) -> None:
        """Raise OutOfDomain, without the counts, unless the input keeps the contract."""
        if self.problems:
            raise OutOfDomain("\n".join(["the table does not keep the contract:", *self.problems]))


def check_input(
    contract: Contract, paths: Sequence[str] = (), *, given: Input | None = None, executor: Executor | None = None
) -> Conformity:
    """Read an input once and compare it with a contract.

    `paths` are files that its `data.later` admits, by default its own; `given` is a table that is no file, read by an
    executor (by default in this process). Raises SpecError: the contract does not name such files; DataError: they
    cannot be read; ReleaseConflict: they changed while they were read.
    """
    data = contract.data
    if data.clients:
        raise SpecError("data.clients: each client checks its own table, with the contract of its own data set")
    for path in paths:
        if not any(fnmatchcase(absolute(path), absolute(pattern)) for pattern in data.later):
            raise SpecError(f"--data {path}: no pattern of the contract's data.later admits it")
    files = source_of(data, paths=tuple(paths))
    months: tuple[str, ...] = ()
    if contract.data.every is not None:
        months = () if given else months_in(file.path for file in find_files(files))
        if not months:
            raise SpecError("data.every: expected files whose names have one month each, such as births-2026-03.csv")
    source, executor = given or Files(files), executor or InProcess()
    unit, beside = contract.protected, contract.protected or contract.weight
    opened = source.open(contract.table, beside=beside.by if beside else None)
    located = opened.on(executor)
    table = located.sides[0]
    if contract.weight is not None:
        table = WeightedRecords(table, contract.weight, once=True)
    if unit is not None:  # how many are kept does not depend on the key; minima by value are of one choice
        table = bounded(executor, located, at_most=unit.at_most, key=KeyRef.fixed(secrets.token_hex(32)))
    places = [contract.table.names.index(name) for name in contract.minima]
    sizes = [a.cardinality if a.name in contract.minima else 1 for a in contract.table.attributes]
    operator = table_counts_operator(sizes, [(place,) for place in places])
    counts, report = executor.compute([table_pass(executor, table, operator, name="check")])[0]
    if source.fingerprint != located.fingerprint:
        raise ReleaseConflict("the files changed while they were read: leave them alone, and check them again")
    problems = [
        *_of_policies(report, contract.table, contract.weight),
        *_of_ids(report, contract),
        *_of_numbers(report, contract, max(len(months), 1)),
        *_of_classes(counts, contract),
    ]
    return Conformity(located.fingerprint, tuple(problems), report.confidential(contract.table), months)


def admit(
    ledger: Books, dataset: str, contract: Contract, found: Conformity, also_charged_to: Collection[str] = ()
) -> None:
    """Admit an input that keeps the contract. Of a month also its quarter and its year, as far as their other months
    are admitted by themselves: their records keep the contract together, too. Raises ContractBroken: as
    `dpdist.ledger.terms.admit_input`.
    """
    how: dict[str, Any] = {"contract": contract.digest, "also_charged_to": also_charged_to}
    ledger.admit_input(dataset, fingerprint=found.fingerprint, months=found.months, **how)
    admitted, files = ledger.inputs(dataset), dict[str, set[FoundFile]]()
    for path in (*contract.data.paths, *contract.data.later) if len(found.months) == 1 else ():
        with suppress(DataNotFound):
            for file in find_files(source_of(contract.data, paths=(path,))):
                for month in months_in([file.path]):
                    files.setdefault(month, set()).add(file)
    for period in periods_of(found.months[0]) if files else ():
        of_month = {month: tuple(sorted(files[month])) for month in months_of(period) if month in files}
        months = [m for m, own in of_month.items() if (fingerprint_of(own), contract.digest) in admitted]
        if len(months) > 1:
            together = fingerprint_of(tuple(sorted(file for month in months for file in files[month])))
            ledger.admit_input(dataset, fingerprint=together, months=months, **how)


def check_records(schema: Schema, given: Input, executor: Executor) -> Conformity:
    """Read an input once and compare its records with a schema. Raises DataError: it cannot be read."""
    opened = given.open(schema)
    (table,) = opened.on(executor).sides
    _, report = executor.compute([table_pass(executor, table, table_counts_operator((), ()), name="check")])[0]
    return Conformity(table.fingerprint, tuple(_of_policies(report, schema, None)), report.confidential(schema))


def _of_policies(report: RowReport, schema: Schema, weight: WeightSpec | None) -> list[str]:
    try:
        check(report, schema)
        if weight is not None:
            check_weights(report, weight)
    except DataError as error:
        return str(error).splitlines()
    return []


def _of_ids(report: RowReport, contract: Contract) -> list[str]:
    unit = contract.protected
    if unit is None or unit.missing == "drop":
        return []
    found = [
        (
            report.nameless,
            f"rows without an id, whose {unit.name} nobody knows (a float with a fraction, or so large that it may "
            "have been rounded, is no id)",
            "find the ids, and write them as integers or texts",
        ),
        (report.orphans, f"records whose {unit.name} has no row in data.parent", "add these rows, or correct the ids"),
        (report.childless, "rows in data.parent that no record belongs to", "add their records, or leave them out"),
        (report.repeated, f"several rows in data.parent for one {unit.name}", "leave one of them"),
    ]
    return [
        f"column {unit.by!r}: {what}; they are in no release: {todo}, or declare that with unit.missing: drop"
        for count, what, todo in found
        if count
    ]


def _of_numbers(report: RowReport, contract: Contract, months: int) -> list[str]:
    problems = []
    if report.kept < months * contract.minimum_records:
        problems.append("fewer records are kept than minimum_records declares")
    if contract.number_of_records not in (None, report.kept + report.uncounted):  # of releases without weights
        problems.append("number_of_records is not the number of records")
    return problems


def _of_classes(counts: Counts, contract: Contract) -> list[str]:
    problems, start = [], 0
    for name, minima in contract.minima.items():
        attribute = contract.table.attributes[contract.table.names.index(name)]
        values = list(map(str, attribute.values or ()))
        for value, least in minima.items():
            if counts[start + values.index(value)] < least:
                problems.append(f"minima.{name}: fewer records have the value {value!r} than declared")
        start += attribute.cardinality
    return problems


LARGEST_EPSILON = 27
"""Largest epsilon of a release: up to it the error of a draw is below `dpdist.privacy.noise.SAMPLER_DELTA`."""


def refuse(plan: Plan) -> None:
    """Refuse a plan whose guarantee the spec did not ask for, or whose release no reader would open. Raises
    GuaranteeRefused; AccountingError: too many events; SpecError: the schema is too large.
    """
    require_few(plan.event)
    if not is_readable(plan.released.model_dump_json(exclude_defaults=True).encode(), share=1 / 2):
        raise SpecError(
            f"schema: it has more than {JSON_VALUES // 2:,} values, or more than {MANIFEST_BYTES >> 21} MiB of them: "
            "no reader would open its manifest; declare fewer values, or bins"
        )
    if plan.refusal is not None:
        raise GuaranteeRefused(plan.refusal)
    exact = plan.kind in ("pml", "lid") and math.isinf(plan.epsilon)  # asked for by name; the ledger has the last word
    if not plan.epsilon <= LARGEST_EPSILON and not exact:
        raise GuaranteeRefused(
            f"the release would cost epsilon {plan.epsilon:.6g}; above {LARGEST_EPSILON} the error of the samplers is "
            "not negligible, and a guarantee means nothing: spend less"
        )
    limit = plan.spec.privacy.limit
    if limit is not None and not plan.epsilon <= limit:
        raise GuaranteeRefused(
            f"the release costs {plan.charged}, above privacy.limit={limit:g}: spend less, or raise the limit"
        )


def keep_apart(source: TableSource | None, output: Store, work: Store, ledger: Books) -> None:
    """Refuse private files inside the output, an output inside the work folder, and a table that covers either. Raises
    SpecError.
    """
    if output.contains(work.uri) or work.contains(output.uri):
        raise SpecError(
            "output.path and work must not contain each other: the work folder is confidential, the output is published"
        )
    private = [("data.path", place) for place in (beginnings(source) if source is not None else ())]
    private += [("ledger", str(ledger.database.file))] if ledger.database.file else []
    for setting, place in private:
        if output.contains(place):
            raise SpecError(f"{setting} lies inside output.path, which is published: choose another output.path")
    for setting, store, name in (
        ("output.path", output, "data/0/part-00000.parquet"),
        ("work", work, f"0/{RUN_RECORD}"),
    ):
        if source is not None and would_find(source, f"{store.uri}/{name}"):
            raise SpecError(
                f"data.path covers {setting}: what a release writes there would become part of the table; choose "
                "another place for it, or name the files of the table more closely"
            )


IN_PROCESS_CELLS = 1 << 22
"""Values up to which plain NumPy reads and counts a table faster than a scheduler starts."""

THREADS_CELLS = 1 << 29
"""Values up to which the threads of this process are faster than worker processes, which take seconds to start."""


def executor_mode(spec: ReleaseSpec, table: Opened) -> str:
    """The mode that a spec names, or else the one for the size of the table, which changes no bit of the release."""
    if spec.cluster.mode != "auto":
        return spec.cluster.mode
    if spec.worker_resources:  # clients of a federated release, each with a worker of its own
        return "embedded"
    if table.cells <= IN_PROCESS_CELLS:
        return "in-process"
    return "threads" if table.cells <= THREADS_CELLS else "embedded"


@contextmanager
def opened_executor(spec: ReleaseSpec, table: Opened) -> Iterator[Executor]:
    """The executor of a release while the context lasts; Dask is imported where one needs it."""
    mode, cluster = executor_mode(spec, table), spec.cluster
    if mode == "in-process":
        yield InProcess()
        return
    from dpdist.cluster.opening import open_cluster

    with open_cluster(cluster, mode=mode, resources=spec.worker_resources) as executor:
        yield executor
