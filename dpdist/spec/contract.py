"""The contract of a data set: what may be asked of its table, frozen by its custodian before the first release.

Whether a table keeps a schema is an answer about its records. So the custodian declares the schema with its policies,
finds out once for each input whether it is kept (`dpdist contract check`), and nobody else learns it. A release
names a part of the contract: some attributes, coarser values, smaller minima. It cannot ask the table anything else.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator, model_validator

from dpdist.errors import ContractBroken, SpecError
from dpdist.privacy.event import Event, takes_size_for_public
from dpdist.spec.data import PATH, ParentTable, TableSpec, from_folder, with_paths
from dpdist.spec.part import departures as schema_departures
from dpdist.spec.release import ReleaseSpec
from dpdist.spec.schema import Schema
from dpdist.spec.strict import Exact, Section
from dpdist.spec.strict_yaml import load_yaml
from dpdist.spec.unit import UnitSpec, WeightSpec, adjacency_words, refuse_released
from dpdist.spec.validation import MONTH, validated
from dpdist.storage.files import absolute

LEAST_CAP: Final = Fraction(1, 1_000_000)
LARGEST_CAP: Final = 1_000_000
"""Bounds on the caps of a data set, in epsilon and in nats: what is outside of them is a slip."""


class InputSpec(TableSpec):
    """The files of a data set and how they are read, or the clients of federated releases that hold them."""

    path: Annotated[str | tuple[str, ...], PATH] = ()
    """Files, folders or globs; local, from the folder of the contract, or s3://."""
    clients: dict[str, str] = Field(default_factory=dict)
    """Instead of files: the clients of federated releases by name, with their public keys. Each has a contract of its
    own for its data set."""
    later: Annotated[tuple[str, ...], PATH] = ()
    """Patterns such as s3://bucket/????-??-??.parquet: inputs that may be added later."""
    every: Literal["month"] | None = None
    """A record is in the files of one month alone, and their names have it (2026-03): the caps then hold for each
    month's records, and a release of a quarter counts for its three months."""

    @model_validator(mode="after")
    def _held(self) -> InputSpec:
        if bool(self.paths) == bool(self.clients):
            raise ValueError("data: the files (`path`), or the clients that hold them (`clients`)")
        if self.clients and (self.later or self.every):
            raise ValueError("data.later, data.every: later inputs of a client are in its own contract")
        if self.parent is not None and (self.later or self.every):
            raise ValueError("data.later, data.every: not with `parent`, whose rows would have to come later, too")
        for path in self.parent.paths if self.parent is not None else ():
            self._findable(path)
        return self

    @field_validator("path", "later")
    @classmethod
    def _findable(cls, given: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for path in (given,) if isinstance(given, str) else given:
            if "://" in path and not path.startswith(("file://", "s3://", "s3a://")):
                raise ValueError("the files of a contract are local or in S3: elsewhere a file has several names")
        return given


class PeriodSpec(Section):
    """What all releases of a period may cost together, at the delta of the contract."""

    per: Literal["day", "week", "month", "quarter", "year"]
    """The period, of the calendar in UTC, in which a charge is reserved; weeks begin on Mondays."""
    epsilon: Exact = Field(ge=LEAST_CAP, le=LARGEST_CAP, description="Cap on epsilon of the releases of a period.")
    pml: Exact | None = Field(default=None, ge=LEAST_CAP)
    """Cap on the leakage of a period, in nats, beside the contract's own."""


class Contract(Section):
    """What a data set is, what it may be asked, and what that may cost altogether."""

    table: Schema = Field(alias="schema", description="The schema with its policies, or the path of its file.")
    data: InputSpec
    unit: Literal["record"] | UnitSpec = "record"
    """Who is protected: a single record, or all records with one id."""
    weight: WeightSpec | None = None
    """The column of the records' weights, by which releases may count."""
    minimum_records: int = Field(ge=1, description="Public lower bound on the number of records that are kept.")
    number_of_records: int | None = Field(default=None, ge=1)
    """The number of records, where it is public; without it none is."""
    minima: dict[str, dict[str, int]] = Field(default_factory=dict)
    """Public lower bounds by attribute and value, for releases by class."""
    guarantees: tuple[Literal["dp", "dp-declared", "pd-per-record", "pml", "lid"], ...] = Field(
        default=("dp",), min_length=1, description="The kinds of guarantee that a release may have."
    )
    epsilon: Exact = Field(ge=LEAST_CAP, le=LARGEST_CAP, description="Cap on epsilon over all releases.")
    delta: Exact = Field(ge=0, lt=1, description="Cap on delta over all releases.")
    alpha: dict[str, float] = Field(default_factory=dict)
    """By attribute, the least probability that a record has any one of its values, whoever reads the release: what a
    guarantee `pml` about it may assume."""
    public_tables: Annotated[tuple[str, ...], PATH] = ()
    """Paths, or patterns of them, of public tables that a release may start its model from."""
    pml: Exact | None = Field(default=None, ge=LEAST_CAP, le=LARGEST_CAP)
    """Cap on pointwise maximal leakage, in nats."""
    period: PeriodSpec | None = None
    """How much of the caps the releases of a day, a week, a month ... may take together."""

    @model_validator(mode="after")
    def _consistent(self) -> Contract:
        values = {a.name: set(map(str, a.values or ())) for a in self.table.attributes}
        for name, minima in self.minima.items():
            if not set(minima) <= values.get(name, set()) or any(least < 1 for least in minima.values()):
                raise ValueError(f"minima.{name}: expected values of an attribute, with lower bounds of at least 1")
        if not set(self.alpha) <= set(values) or any(not 0 < least <= 1 for least in self.alpha.values()):
            raise ValueError("alpha: expected attributes of the schema, each with a probability above 0")
        dropping = self.table.dropping
        if self.number_of_records is not None and dropping:
            raise ValueError(
                f"number_of_records: the policy `drop` of {', '.join(map(repr, dropping))} makes the number of kept "
                "records private: choose other policies, or leave the number out"
            )
        if self.number_of_records is not None and self.number_of_records < self.minimum_records:
            raise ValueError("number_of_records is below minimum_records")
        if self.period is not None:
            above = self.period.epsilon > self.epsilon or (self.period.pml or 0) > (self.pml or 0)
            if above:
                raise ValueError("period: its caps are at most those of the contract, and `pml` goes with one there")
        refuse_released(self.protected, self.weight, self.table)
        if self.protected is not None and (self.number_of_records is not None or self.data.clients):
            raise ValueError(
                "unit: how many records are kept of each unit is private, and nobody bounds those that a unit has "
                "with several clients, so number_of_records and data.clients do not go with it: leave them out"
            )
        if self.data.every is not None and (self.protected is not None or self.number_of_records is not None):
            raise ValueError(
                "data.every: a unit may have records in several months, and a number of records is that of one input: "
                "leave `unit` and `number_of_records` out"
            )
        return self

    @property
    def protected(self) -> UnitSpec | None:
        """The unit; None where a single record is protected."""
        return self.unit if isinstance(self.unit, UnitSpec) else None

    @classmethod
    def from_yaml(cls, path: str | Path) -> Contract:
        """Read a contract file; a schema given by path is read from beside it.

        Raises SpecError: the file cannot be read or is no contract; the message names each setting.
        """
        tree = load_yaml(path)
        if not isinstance(tree, dict):
            raise SpecError(f"{path} is no contract: expected a mapping with `schema`, `data`, `epsilon` ...")
        if isinstance(tree.get("schema"), str):
            tree["schema"] = Schema.from_yaml(Path(path).parent / tree["schema"])
        return validated(cls, from_folder(tree, cls, Path(path).parent), str(path), what="contract")

    @classmethod
    def from_text(cls, text: str) -> Contract:
        """The contract that `text` is of."""
        return cls.model_validate_json(text)

    @property
    def text(self) -> str:
        """Canonical JSON: what the ledger keeps."""
        tree = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        return json.dumps(tree, sort_keys=True, separators=(",", ":"))

    @property
    def digest(self) -> str:
        """SHA-256 of `text`."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def located(self) -> Contract:
        """The contract with paths that name the same files from any folder."""
        return Contract.model_validate(with_paths(json.loads(self.text), Contract, absolute))

    def departures(self, spec: ReleaseSpec, *, event: Event | None) -> list[str]:
        """What a release asks for that the contract does not admit; empty where it keeps the contract."""
        found = schema_departures(spec.table, self.table)
        if spec.unit != self.protected:
            unit = self.protected
            said = "leave `unit` out" if unit is None else f"`unit: {{by: {unit.by}, at_most: {unit.at_most}}}`"
            more = f" with name {unit.name!r} and missing {unit.missing}" if unit else ""
            found.append(f"unit: the contract decides who is protected: write {said}{more}")
        found += _of_weights(spec.weight, self.weight)
        if spec.data.storage.endpoint_url not in (None, self.data.storage.endpoint_url):
            found.append("data.storage.endpoint_url: the files are those of another store: leave it out, or declare it")
        if spec.data.csv != self.data.csv or (spec.data.format or self.data.format) != self.data.format:
            found.append("data.csv and data.format: the files are read in another way")
        found += _of_parents(spec.data.parent, self.data.parent, spec.table)
        if self.data.clients and not spec.clients:
            found.append("federated: the contract is one of federated releases, whose clients hold the records")
        unknown = sorted(name for name, key in spec.clients.items() if self.data.clients.get(name) != key)
        if unknown:
            found.append(f"federated.clients: the contract has no {', '.join(map(repr, unknown))} with that public_key")
        months = months_in(spec.data.paths) if self.data.every else ()
        largest = self.number_of_records or self.minimum_records * max(len(months), 1)
        if spec.data.minimum_records > largest:
            found.append(f"data.minimum_records is above {largest}")
        for name, minima in spec.class_minima.items():
            for value, least in minima.items():
                if least > self.minima.get(name, {}).get(value, 0):
                    found.append(f"the minimum of {name} {value!r} is above the declared one, or none is declared")
        for names, alpha in spec.least_probabilities.items():
            if len(names) != 1 or alpha > self.alpha.get(names[0], 0):
                found.append(
                    f"privacy.alpha of {', '.join(map(repr, names))}: a contract declares `alpha` by attribute, for "
                    "histograms of one column, and this is above it or none is declared"
                )
        if self.number_of_records is None and event is not None and takes_size_for_public(event):
            found.append("privacy.adjacency: replacement takes the number of records for public, and it is private")
        public = [absolute(pattern) for pattern in self.public_tables]
        found += [
            f"model.{setting}: {path} is not one of the contract's public_tables"
            for setting, paths in (("prior", spec.public_tables), ("evidence", spec.earlier_releases))
            for path in paths
            if ".." in path.split("/") or not any(fnmatchcase(absolute(path), pattern) for pattern in public)
        ]
        if spec.asks_of_table is not None:
            found.append(spec.asks_of_table)
        return found


def _of_weights(part: WeightSpec | None, whole: WeightSpec | None) -> list[str]:
    """Why a release would learn from a refusal how large weights are, or use another column."""
    if part is None:
        return []
    if whole is None:
        return ["weight: the contract has no column of weights: leave it out"]
    found = []
    if (part.by, part.missing) != (whole.by, whole.missing):
        found.append(f"weight: the contract says `by: {whole.by}` and `missing: {whole.missing}`")
    if part.above == "refuse" and (whole.above != "refuse" or part.at_most < whole.at_most):
        found.append(f"weight.at_most: the contract admits {whole.at_most:,}: write that, or `above: clip`")
    return found


def _of_parents(part: ParentTable | None, whole: ParentTable | None, table: Schema) -> list[str]:
    """Why records are not joined with their parents as the contract says."""
    if whole is None:
        return [] if part is None else ["data.parent: the contract has no table of parents: leave it out"]
    named = set(whole.attributes) & set(table.names)
    if part is None or set(part.attributes) != named or set(map(absolute, part.paths)) != set(whole.paths):
        return [f"data.parent: the contract reads {', '.join(sorted(named))} from {', '.join(whole.paths)}"]
    return []


def months_in(paths: Iterable[str]) -> tuple[str, ...]:
    """The months that the names of files have, in order; none where a name has none, or several."""
    month = re.compile(rf"(?<!\d){MONTH}(?!\d)")
    found = [set(month.findall(path.rstrip("/").rpartition("/")[2])) for path in paths]
    return tuple(sorted(set().union(*found))) if all(len(months) == 1 for months in found) else ()


def protected_by(text: str | None) -> str:
    """Whom the account of a data set protects, in a word, from the text of its contract."""
    unit = None if text is None else Contract.from_text(text).protected
    return "record" if unit is None else unit.name


def adjacency_of(text: str | None) -> str:
    """What the account of a data set is about, from the text of its contract."""
    contract = None if text is None else Contract.from_text(text)
    words = adjacency_words(None if contract is None else contract.protected)
    return words if contract is None or contract.data.every is None else f"{words}, for each {contract.data.every}"


def kept_contract(text: str | None, spec: ReleaseSpec, *, name: str, event: Event | None) -> str | None:
    """The digest of the contract of a data set from its text, which a release keeps; None where it has none.

    Raises ContractBroken: the release asks for something else than a part of the contract. Nothing was read.
    """
    if text is None:
        if spec.protects_only_units:
            raise ContractBroken(
                f"unit: data set {name!r} has no contract, so its account is one of records, and a record more of a "
                f"unit changes a release of kind {spec.kind} by more than a unit does: declare the unit in a contract"
            )
        if spec.unit is not None and spec.unit.at_most == 1:
            raise ContractBroken(
                f"unit.at_most: data set {name!r} has no contract, so its account is one of records, and a record "
                "more may exchange the only one that is used of a unit: declare the unit in a contract, or at_most: 2"
            )
        return None
    contract = Contract.from_text(text)
    found = contract.departures(spec, event=event)
    if found:
        raise ContractBroken(
            f"the spec is not a part of the contract of data set {name!r} (dpdist contract show {name}):\n"
            + "\n".join(found)
        )
    return contract.digest


def drafted(
    schema: Schema, *, path: tuple[str, ...], minimum: int, caps: tuple[str, str], reads: TableSpec | None = None
) -> dict[str, Any]:
    """A contract as a mapping for YAML, from a schema and the least that it must add: the caps on epsilon and
    delta, and the files, whose layout, and paths unless some are given, are those of `reads`.
    """
    data: dict[str, Any] = {}
    if reads is not None:
        data = reads.model_dump(mode="json", exclude={"minimum_records"}, exclude_defaults=True)
    if path:
        data["path"] = path if len(path) > 1 else path[0]
    epsilon, delta = caps
    settings = {"schema": schema, "data": data, "minimum_records": minimum, "epsilon": epsilon, "delta": delta}
    contract = validated(Contract, settings, "what was given", what="contract").located()  # from any folder
    tree = contract.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return tree | {"epsilon": epsilon, "delta": delta, "guarantees": list(contract.guarantees)}
