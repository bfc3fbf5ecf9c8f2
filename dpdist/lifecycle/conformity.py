"""Whether an input keeps the contract of a data set: found once, told to its custodian alone."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpdist.cluster.executor import Executor, InProcess
from dpdist.data.inputs import Files, Input, source_of
from dpdist.data.operators import Operator
from dpdist.data.report import RowReport, check, check_weights
from dpdist.data.source import FoundFile, TableSource, find_files, fingerprint_of
from dpdist.data.weighted import WeightedRecords
from dpdist.errors import DataError, DataNotFound, OutOfDomain, ReleaseConflict, SpecError
from dpdist.families.base.bounding import bounded
from dpdist.families.base.graph import table_pass
from dpdist.ledger import Books
from dpdist.ledger.keys import KeyRef
from dpdist.spec.contract import Contract, months_in
from dpdist.spec.schema import Schema
from dpdist.spec.series import months_of, periods_of
from dpdist.spec.unit import WeightSpec
from dpdist.storage.files import absolute

if TYPE_CHECKING:
    from dpdist.privacy.arrays import Codes


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
    months = _months(contract, None if given else files)
    source, executor = given or Files(files), executor or InProcess()
    unit, beside = contract.protected, contract.protected or contract.weight
    opened = source.open(contract.table, beside=beside.by if beside else None)
    located = opened.on(executor)
    table = located.sides[0]
    if contract.weight is not None:
        table = WeightedRecords(table, contract.weight, once=True)
    if unit is not None:  # how many are kept does not depend on the key; minima by value are of one choice
        table = bounded(executor, located, at_most=unit.at_most, key=KeyRef.fixed(secrets.token_hex(32)))
    names = contract.table.names
    counted = {names.index(name): contract.table.attributes[names.index(name)].cardinality for name in contract.minima}
    operator = Operator(name="classes", chunk=partial(_counts, sizes=counted), combine=_added)
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


def _months(contract: Contract, files: TableSource | None) -> tuple[str, ...]:
    """The months of an input's files. Raises SpecError: a name has none, and the contract is one by month."""
    if contract.data.every is None:
        return ()
    months = months_in(file.path for file in find_files(files)) if files is not None else ()
    if not months:
        raise SpecError("data.every: expected files whose names have one month each, such as births-2026-03.parquet")
    return months


def _counts(codes: Codes, sizes: Mapping[int, int]) -> dict[int, NDArray[np.int64]]:
    return {column: np.bincount(codes[column], minlength=size).astype(np.int64) for column, size in sizes.items()}


def _added(a: dict[int, NDArray[np.int64]], b: dict[int, NDArray[np.int64]]) -> dict[int, NDArray[np.int64]]:
    return {column: a[column] + b[column] for column in a}


def check_records(schema: Schema, given: Input, executor: Executor) -> Conformity:
    """Read an input once and compare its records with a schema. Raises DataError: it cannot be read."""
    opened = given.open(schema)
    (table,) = opened.on(executor).sides
    operator = Operator(name="rows", chunk=partial(_counts, sizes={}), combine=_added)
    _, report = executor.compute([table_pass(executor, table, operator, name="check")])[0]
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


def _of_classes(counts: Mapping[int, NDArray[np.int64]], contract: Contract) -> list[str]:
    problems = []
    for name, minima in contract.minima.items():
        place = contract.table.names.index(name)
        values = list(map(str, contract.table.attributes[place].values or ()))
        for value, least in minima.items():
            if counts[place][values.index(value)] < least:
                problems.append(f"minima.{name}: fewer records have the value {value!r} than declared")
    return problems
