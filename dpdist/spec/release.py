"""The spec of a release: one YAML file that says everything a release needs.

The same spec runs on a laptop and on a cluster: only `data`, `ledger`, `work`, `output` and `cluster` change.
Nothing in a spec is secret; credentials come from the environment.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from dpdist.limits import PART_ROWS
from dpdist.spec.data import PATH, DataSpec, StorageSpec, without_paths
from dpdist.spec.schema import Schema
from dpdist.spec.strict import Section
from dpdist.spec.unit import Following, UnitSpec, WeightSpec, protected, refuse_released
from dpdist.spec.validation import NAME, change

DEFAULT_LEDGER = "sqlite:///dpdist-ledger.db"

Epsilon = Annotated[float, Field(ge=1e-6, le=20, allow_inf_nan=False, description="Epsilon of the whole release.")]
Delta = Annotated[float, Field(ge=1e-15, lt=0.1, allow_inf_nan=False, description="Delta of the whole release.")]


class OutputSpec(Section):
    """Where and how the release is written."""

    path: Annotated[str, PATH]
    """Folder of the release, from that of the spec, or s3:// prefix."""
    values: Literal["values", "labels", "codes"] = "values"
    """Write the declared values, their labels, or integer codes."""
    bins: Literal["uniform", "label"] = "uniform"
    """Binned numbers as one drawn in the bin (of a synthesis by its neighbours' counts), or as the bin's text."""
    rows_per_part: int = Field(default=250_000, ge=1_000, le=PART_ROWS, description="Rows in each Parquet part.")
    signing_key: Annotated[str | None, PATH] = None
    """PEM file of an Ed25519 private key; default: the identity of the data set."""
    storage: StorageSpec = StorageSpec()


LEAST_WORKER_MEMORY = 256 << 20


def parse_bytes(text: str) -> int:
    """Bytes of a size such as 3GiB or 500MB; ValueError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B\s*", text)
    if match is None:
        raise ValueError(text)
    number, prefix, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** ("kMGT".index(prefix) + 1 if prefix else 0))


class SecuritySpec(Section):
    """Files for TLS between the processes of a Dask cluster; `dpdist cluster certs` makes them."""

    ca: Annotated[str, PATH]
    """PEM file of the authority that signed all certificates of the cluster."""
    cert: Annotated[str, PATH]
    """PEM file of this client's certificate."""
    key: Annotated[str, PATH]
    """PEM file of its private key."""


class ClusterSpec(Section):
    """Where the work runs."""

    mode: Literal["auto", "in-process", "threads", "embedded", "address"] = "auto"
    """in-process: plain NumPy; threads: Dask in this process; embedded: worker processes on this machine; address: a
    Dask scheduler; auto: the first three by the size of the table."""
    address: str | None = None
    """Scheduler address, such as tls://scheduler:8786."""
    scheduler_file: Annotated[str | None, PATH] = None
    """File that a Dask scheduler wrote (`--scheduler-file`), instead of `address`."""
    security: SecuritySpec | None = None
    """Certificates, for an address tls://…"""
    workers: int | None = Field(default=None, ge=1, le=10_000)
    """Embedded workers (default: one per core), or at an address the workers to wait for."""
    memory_limit: str = "auto"
    """Memory limit of an embedded worker, such as 3GiB."""
    partitions: int | None = Field(default=None, ge=1, le=100_000)
    """Number of partitions; default: about a million rows each, and of few as many for each slot."""
    timeout: float = Field(default=30, gt=0, le=86_400, description="Seconds to wait for the scheduler and a worker.")

    @model_validator(mode="after")
    def _addressed(self) -> ClusterSpec:
        if (self.mode == "address") != (self.address is not None or self.scheduler_file is not None):
            raise ValueError("`address` (or `scheduler_file`) goes with `mode: address`, and only with it")
        if self.address is not None and self.scheduler_file is not None:
            raise ValueError("`address` or `scheduler_file`: give one of them")
        if self.mode == "auto" and (self.workers is not None or self.memory_limit != "auto"):
            object.__setattr__(self, "mode", "embedded")  # settings of worker processes ask for them
        if self.address is not None and not re.fullmatch(r"(tcp|tls|ucx|ws|wss)://[^\s/]+:\d+/?", self.address):
            raise ValueError("`address` is a scheduler's, such as tls://scheduler:8786")
        if self.memory_limit != "auto":
            try:
                enough = parse_bytes(self.memory_limit) >= LEAST_WORKER_MEMORY
            except ValueError:
                raise ValueError("`memory_limit` is auto or a size such as 3GiB") from None
            if not enough:
                raise ValueError("`memory_limit` is too small for a worker: give it 256MiB or more")
        if self.security is not None and not (self.scheduler_file or (self.address or "").startswith("tls://")):
            raise ValueError("`security` goes with an address that begins with tls://")
        return self


class PrivacyLimit(Section):
    """What the release may cost at most; each family adds its own settings."""

    limit: float | None = Field(default=None, gt=0)
    """Refuse to run if the charge of the release exceeds this epsilon."""


class ReleaseSpec(Section):
    """What the spec of every kind of release says."""

    protects_units: ClassVar[bool] = False  # whether the charge of the family is known for units of several records
    weighs: ClassVar[bool] = False  # whether records may count by their weights
    keeps_rules: ClassVar[bool] = False  # whether the schema may have rules, which then no released record breaks
    papers: ClassVar[tuple[str, ...]] = ()  # of the method, to be cited with a release

    kind: str
    name: str = Field(pattern=NAME, description="Name of the release, once per data set.")
    dataset: str = Field(pattern=NAME, description="Data set whose budget is charged.")
    data: DataSpec
    table: Schema = Field(alias="schema", description="The schema, or the path of its file (from the spec).")
    output: OutputSpec
    ledger: str = Field(default=DEFAULT_LEDGER, repr=False, description="SQLAlchemy URL of the ledger.")
    work: Annotated[str, PATH] = ".dpdist"
    """Confidential folder for what a running attempt stores: local, from the folder of the spec, or s3://."""
    cluster: ClusterSpec = ClusterSpec()
    privacy: PrivacyLimit
    unit: UnitSpec | None = None
    """Who is protected, as the contract says; without it a single record is."""
    weight: WeightSpec | None = None
    """Weights of the records, which then count as this many; without it each counts once."""

    @model_validator(mode="after")
    def _admitted(self) -> ReleaseSpec:
        if self.weight is not None and not self.weighs:
            raise ValueError(
                f"weight: this family ({self.kind}) counts no records, or each once; leave `weight` out, or release "
                "histograms or a synthesis"
            )
        if self.unit is not None and not self.protects_units:
            raise ValueError(f"unit: this family ({self.kind}) protects single records only; leave the release out")
        refuse_released(self.unit, self.weight, self.table)
        if self.data.parent is not None and self.unit is None:
            raise ValueError("data.parent: tables are joined by the ids of units: declare `unit`")
        if self.table.rules and not self.keeps_rules:
            raise ValueError(
                f"schema.rules: a release of kind {self.kind} cannot keep rules, as kind: synthesis does: leave them "
                "out of its schema"
            )
        return self

    @property
    def records_of_a_unit(self) -> int:
        """Records by which neighbouring tables differ, at most; a record of weight w is w of them."""
        if self.weight is not None:
            return self.weight.at_most
        return 1 if self.unit is None else self.unit.at_most

    @property
    def following(self) -> Following | None:
        """How the units of a panel are followed; None where a unit's records are no history."""
        return None

    @property
    def column_beside(self) -> str | None:
        """The column that is read beside the attributes: ids of units, or weights."""
        of = self.unit or self.weight
        return None if of is None else of.by

    @property
    def expected_records(self) -> int:
        """Records to count, as far as that is public: the total of the weights, else `data.minimum_records`."""
        return (self.weight and self.weight.total) or self.data.minimum_records

    def with_bound(self, at_most: int) -> Self:
        """The same with another bound on the records of a unit, or on weights, which then add up to less."""
        if self.weight is None:
            return change(self, {"unit.at_most": at_most})
        changes, total = {"weight.at_most": at_most}, self.weight.total
        if total is not None and at_most < self.weight.at_most:
            least = max(self.data.minimum_records * at_most, total * at_most // self.weight.at_most)
            changes["weight.total"] = min(total, least)
        return change(self, changes)

    @property
    def protects_only_units(self) -> bool:
        """Whether one record more of a unit may cost more than the whole unit."""
        return False

    @property
    def protected(self) -> dict[str, Any]:
        """The unit in the words of a guarantee (`dpdist.spec.unit.protected`)."""
        return protected(self.unit)

    @property
    def worker_resources(self) -> tuple[str, ...]:
        """Dask resources; the release needs a worker for each."""
        return ()

    @property
    def clients(self) -> dict[str, str | None]:
        """The clients that hold the records, with their public keys; none where the release reads files."""
        return {}

    @property
    def plugins(self) -> frozenset[str]:
        """Functions of the user that the release runs, as ``module:function``."""
        return frozenset()

    @property
    def class_minima(self) -> dict[str, dict[str, int]]:
        """Declared lower bounds by attribute and value, in addition to `data.minimum_records`."""
        return {}

    @property
    def least_probabilities(self) -> dict[tuple[str, ...], float]:
        """What the release assumes of whoever reads it: by columns, the least probability of each of their cells."""
        return {}

    @property
    def public_tables(self) -> tuple[str, ...]:
        """Paths of public tables that the release reads in addition to its own."""
        return ()

    @property
    def earlier_releases(self) -> tuple[str, ...]:
        """Paths of earlier releases that it takes as evidence."""
        return ()

    @property
    def asks_of_table(self) -> str | None:
        """What the release asks of a table beyond its schema, so that no contract admits it; None where nothing."""
        return None

    @property  # computed where it is asked for: one that was kept could be that of other settings
    def fingerprint(self) -> str:
        """SHA-256 of the settings that decide the released bytes (`decisive`)."""
        return hashlib.sha256(json.dumps(self.decisive(), sort_keys=True).encode()).hexdigest()

    def decisive(self) -> dict[str, Any]:
        """The settings that decide the released bytes: all but where the release runs and where its files are."""
        elsewhere: Any = {"cluster": True, "ledger": True, "work": True}
        elsewhere |= {"data": {"storage"}, "output": {"storage"}}
        tree = self.model_dump(mode="json", by_alias=True, exclude=elsewhere, exclude_defaults=True)
        return without_paths(tree, type(self))

    def public(self) -> dict[str, Any]:
        """The public settings, for the manifest: not the schema, nor where the release runs and where its files are."""
        tree = self.model_dump(mode="json", by_alias=True, exclude={"cluster", "ledger", "work", "table"})
        tree["data"] = {"minimum_records": self.data.minimum_records}
        for name in ("storage", "signing_key", "path"):
            del tree["output"][name]
        return tree
