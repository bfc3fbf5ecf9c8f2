"""The spec of a release: one YAML file that says everything a release needs.

The same spec runs on a laptop and on a cluster: only `data`, `ledger`, `work`, `output` and `cluster` change.
Nothing in a spec is secret; credentials come from the environment.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    model_validator,
)

from dpdist.errors import SpecError
from dpdist.schema import Schema, load_yaml, validation_message


def _exact(value: object) -> object:
    """A share or a budget as an exact rational: 0.1 means one tenth, not the nearest double."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Fraction):
        return value
    try:
        return Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        raise ValueError("expected a number such as 0.25 or a fraction such as 1/3") from None


Exact = Annotated[
    Fraction,
    BeforeValidator(_exact, json_schema_input_type=float | str),
    PlainSerializer(str, return_type=str),
]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ignored_types=(cached_property,))


class StorageSpec(_Section):
    """How to reach object storage; credentials come from the environment or the named profile."""

    endpoint_url: str | None = Field(default=None, description="Endpoint of an S3-compatible store.")
    profile: str | None = Field(default=None, description="Profile of the AWS configuration files.")
    region: str | None = Field(default=None, description="Region name.")

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments for an fsspec S3 file system."""
        options: dict[str, Any] = {}
        if self.endpoint_url:
            options["endpoint_url"] = self.endpoint_url
        if self.profile:
            options["profile"] = self.profile
        if self.region:
            options["client_kwargs"] = {"region_name": self.region}
        return options


class CsvSpec(_Section):
    """How a CSV file is laid out."""

    header: bool = Field(default=True, description="Whether the first row holds the column names.")
    columns: tuple[str, ...] | None = Field(default=None, description="Column names of files without header.")
    delimiter: str = Field(default=",", min_length=1, max_length=1, description="Field separator.")
    strip: bool = Field(default=True, description="Whether blanks around fields are removed.")
    comment: str | None = Field(default=None, description="Lines that start with this text are passed over.")
    skip_rows: int = Field(default=0, ge=0, description="Lines to skip at the top of each file.")

    @model_validator(mode="after")
    def _named(self) -> CsvSpec:
        if not self.header and not self.columns:
            raise ValueError("a CSV without header needs `columns`")
        return self


class DataSpec(_Section):
    """The table a release reads."""

    path: str | tuple[str, ...] = Field(description="Files, folders or globs; local or s3://.")
    format: Literal["parquet", "csv"] | None = Field(default=None, description="Inferred from the name if absent.")
    csv: CsvSpec = Field(default_factory=CsvSpec)
    extra_columns: Literal["refuse", "ignore"] = Field(
        default="refuse", description="What to do with columns the schema does not name."
    )
    minimum_records: int = Field(
        ge=1, description="Declared public lower bound on the number of records; checked with a noisy count."
    )
    storage: StorageSpec = Field(default_factory=StorageSpec)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths as a tuple."""
        return (self.path,) if isinstance(self.path, str) else self.path


class OutputSpec(_Section):
    """Where and how the release is written."""

    path: str = Field(description="Folder or s3:// prefix of the release.")
    values: Literal["values", "labels", "codes"] = Field(
        default="values", description="Write the declared values, their labels, or integer codes."
    )
    bins: Literal["uniform", "label"] = Field(
        default="uniform",
        description="Binned integers as an integer drawn uniformly in the bin, or as the bin's text.",
    )
    rows_per_part: int = Field(default=250_000, ge=1_000, description="Rows in each Parquet part.")
    signing_key: str | None = Field(default=None, description="PEM file of an Ed25519 private key.")
    storage: StorageSpec = Field(default_factory=StorageSpec)


LEAST_WORKER_MEMORY = 256 << 20


def parse_bytes(text: str) -> int:
    """Bytes of a size such as 3GiB or 500MB; ValueError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B\s*", text)
    if match is None:
        raise ValueError(text)
    number, prefix, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** ("kMGT".index(prefix) + 1 if prefix else 0))


class SecuritySpec(_Section):
    """Files for TLS between the processes of a Dask cluster; `dpdist cluster certs` makes them."""

    ca: str = Field(description="PEM file of the authority that signed all certificates of the cluster.")
    cert: str = Field(description="PEM file of this client's certificate.")
    key: str = Field(description="PEM file of its private key.")


class ClusterSpec(_Section):
    """Where the work runs."""

    mode: Literal["embedded", "address", "threads"] = Field(
        default="embedded",
        description="embedded: worker processes on this machine; address: a Dask scheduler; threads: this process.",
    )
    address: str | None = Field(default=None, description="Scheduler address, such as tls://scheduler:8786.")
    security: SecuritySpec | None = Field(default=None, description="Certificates, for an address tls://…")
    workers: int | None = Field(default=None, ge=1, description="Embedded workers; default: one per core.")
    memory_limit: str = Field(default="auto", description="Memory limit of an embedded worker, such as 3GiB.")
    partitions: int | None = Field(
        default=None, ge=1, description="Number of partitions; default: about a million rows each."
    )
    timeout: float = Field(default=30, gt=0, description="Seconds to wait for the scheduler and a worker.")

    @model_validator(mode="after")
    def _addressed(self) -> ClusterSpec:
        if (self.mode == "address") != (self.address is not None):
            raise ValueError("`address` goes with `mode: address`, and only with it")
        if self.address is not None and not re.fullmatch(r"(tcp|tls|ucx|ws|wss)://[^\s/]+:\d+/?", self.address):
            raise ValueError("`address` is a scheduler's, such as tls://scheduler:8786")
        if self.memory_limit != "auto":
            try:
                enough = parse_bytes(self.memory_limit) >= LEAST_WORKER_MEMORY
            except ValueError:
                raise ValueError("`memory_limit` is auto or a size such as 3GiB") from None
            if not enough:
                raise ValueError("`memory_limit` is too small for a worker: give it 256MiB or more")
        if self.security is not None and not (self.address or "").startswith("tls://"):
            raise ValueError("`security` goes with an address that begins with tls://")
        return self


class Budget(_Section):
    """An (epsilon, delta) pair."""

    epsilon: float = Field(gt=0, le=20, allow_inf_nan=False)
    delta: float = Field(ge=1e-10, lt=1, allow_inf_nan=False)


class DeniabilitySpec(_Section):
    """The privacy test of plausible deniability."""

    k: int = Field(default=50, ge=1, description="Plausible seeds a released record needs.")
    gamma: float = Field(default=4, gt=1, le=1e6, description="Largest ratio of probabilities in a bucket.")
    epsilon0: float = Field(default=1, gt=0, le=100, description="Parameter of the threshold noise.")
    test: Literal["randomised", "deterministic"] = Field(
        default="randomised", description="Privacy Test 2 (noisy threshold) or 1 (fixed threshold, not DP)."
    )


class PrivacySpec(_Section):
    """What the release may cost and which guarantee it states."""

    model: Budget = Field(description="Budget of the model (structure and parameters).")
    delta: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Delta of the whole-release guarantee; default: that of the model.",
    )
    limit: float | None = Field(
        default=None,
        gt=0,
        description="Refuse to run if the charge exceeds this epsilon (per record, the charge is that of the model).",
    )
    check_share: float = Field(
        default=0.1, gt=0, lt=0.5, description="Share of a stage's epsilon and delta spent on its checks."
    )
    seed_check_epsilon: float = Field(
        default=0.02, gt=0, le=10, description="Epsilon of each of the two checks on the seeds."
    )
    checked_candidates: int = Field(
        default=1 << 20,
        ge=1,
        le=1 << 32,
        description="Candidates drawn at least, among which the pass rate is checked.",
    )
    deniability: DeniabilitySpec = Field(default_factory=DeniabilitySpec)
    accept_per_record: bool = Field(
        default=False,
        description="Accept a guarantee per released record where the whole release has none that is finite.",
    )

    @property
    def release_delta(self) -> float:
        """Delta of the whole-release guarantee."""
        return self.model.delta if self.delta is None else self.delta


class SplitSpec(_Section):
    """Shares of the records used for structure, parameters and seeds; exact, they sum to one."""

    structure: Exact = Field(default=Fraction(1, 10), ge=0, le=1)
    parameters: Exact = Field(default=Fraction(4, 10), ge=0, le=1)
    seeds: Exact = Field(default=Fraction(5, 10), ge=0, le=1)

    @model_validator(mode="after")
    def _one(self) -> SplitSpec:
        if self.structure + self.parameters + self.seeds != 1:
            raise ValueError(
                f"the shares sum to {float(self.structure + self.parameters + self.seeds):g}; "
                "structure + parameters + seeds must be exactly 1"
            )
        if self.parameters == 0:
            raise ValueError("the share of `parameters` must be above 0")
        return self

    @property
    def shares(self) -> tuple[Fraction, Fraction, Fraction]:
        """Shares in the order structure, parameters, seeds."""
        return (self.structure, self.parameters, self.seeds)


class ModelSpec(_Section):
    """The Bayesian network that generates the records."""

    structure: Literal["learned", "independent"] = Field(
        default="learned", description="Learn the parents, or release independent marginals (the baseline)."
    )
    score: Literal["cfs", "mutual-information", "total-variation"] = Field(
        default="total-variation",
        description="Criterion of the parent search: cfs (the published one, from noisy entropies), mutual-information "
        "(the same entropies, lowest expected error of the two-way marginals) or total-variation (the same search from "
        "distances to independence, whose sensitivity is several times smaller).",
    )
    max_parent_configurations: int | None = Field(
        default=None,
        ge=1,
        le=4_000_000,
        description="Largest number of joint parent configurations; default: by the size of the table.",
    )
    order: Literal["learned", "small-first"] | tuple[str, ...] = Field(
        default="small-first",
        description="Order of the attributes where the network leaves a choice (small domains first keeps more seeds "
        "plausible), or the names of all attributes in a declared order: parents then come before their children.",
    )
    estimate: Literal["mean", "sample"] = Field(
        default="mean", description="Conditional tables: posterior mean, or one draw from the posterior."
    )
    prior: float = Field(default=0.1, gt=0, description="Dirichlet prior, in records per value.")


class SynthesisSpec(_Section):
    """The records to release."""

    records: int = Field(ge=1, description="Number of released records, R.")
    omega: Literal["all"] | int | tuple[int, ...] = Field(
        default="all",
        description="How many attributes are resampled: all, a number, or a list from which each candidate draws.",
    )
    minimum_pass_rate: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="Declared public lower bound on the pass rate; checked with noise.",
    )
    max_plausible: int | None = Field(
        default=None,
        ge=1,
        description="Accepted for parity with the paper; not needed: all seeds are counted.",
    )
    max_check_plausible: int | None = Field(
        default=None,
        ge=1,
        description="Accepted for parity with the paper; not needed: all seeds are counted.",
    )


class PlausibleDeniabilitySpec(_Section):
    """Full synthetic records from a DP Bayesian network, tested against the seeds."""

    kind: Literal["plausible-deniability"]
    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", description="Name of the release, once per data set."
    )
    dataset: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", description="Data set whose budget is charged.")
    data: DataSpec
    table: Schema = Field(alias="schema", description="The schema, or the path of its file (from the spec).")
    output: OutputSpec
    ledger: str = Field(default="sqlite:///dpdist-ledger.db", description="SQLAlchemy URL of the ledger.")
    work: str = Field(
        default=".dpdist",
        description="Confidential folder for what a running attempt stores; local or s3://.",
    )
    cluster: ClusterSpec = Field(default_factory=ClusterSpec)
    privacy: PrivacySpec
    split: SplitSpec = Field(default_factory=SplitSpec)
    model: ModelSpec = Field(default_factory=ModelSpec)
    synthesis: SynthesisSpec

    @model_validator(mode="after")
    def _consistent(self) -> PlausibleDeniabilitySpec:
        m = len(self.table.attributes)
        bad = [w for w in self.omegas if not 1 <= w <= m]
        if bad or not self.omegas:
            raise ValueError(f"synthesis.omega: numbers of attributes lie between 1 and {m}")
        if len(set(self.omegas)) != len(self.omegas):
            raise ValueError("synthesis.omega: a number is listed twice")
        if self.uses_seeds and self.split.seeds == 0:
            raise ValueError("split.seeds: must be above 0 when some attribute keeps its seed's value")
        order = self.model.order
        if isinstance(order, tuple) and sorted(order) != sorted(self.table.names):
            raise ValueError("model.order: a declared order names every attribute of the schema once")
        if self.model.structure == "learned" and self.split.structure == 0:
            raise ValueError("split.structure: must be above 0 when the structure is learned")
        return self

    @property
    def omegas(self) -> tuple[int, ...]:
        """The numbers of resampled attributes, ascending."""
        omega = self.synthesis.omega
        if omega == "all":
            return (len(self.table.attributes),)
        return (omega,) if isinstance(omega, int) else tuple(sorted(omega))

    @property
    def uses_seeds(self) -> bool:
        """Whether any candidate keeps values of its seed."""
        return self.omegas != (len(self.table.attributes),)

    @property
    def kept_combinations(self) -> int | None:
        """Combinations of values that candidates can keep of their seeds; None where they are not declared.

        Known where the order is declared and one number of attributes is resampled.
        """
        order = self.model.order
        if not isinstance(order, tuple) or len(self.omegas) > 1:
            return None
        sizes = dict(zip(self.table.names, self.table.cardinalities, strict=True))
        return math.prod(sizes[name] for name in order[: len(order) - self.omegas[0]])

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of what decides the released bytes: all but where it runs and where its files are."""
        public = self.model_dump(mode="json", by_alias=True, exclude={"cluster", "ledger", "work"})
        del public["data"]["storage"], public["output"]["storage"], public["output"]["path"]
        return hashlib.sha256(json.dumps(public, sort_keys=True).encode()).hexdigest()


ReleaseSpec = PlausibleDeniabilitySpec
KINDS: dict[str, type[PlausibleDeniabilitySpec]] = {"plausible-deniability": PlausibleDeniabilitySpec}


def _set(tree: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    node = tree
    for name in parents:
        child = node.setdefault(name, {})
        if not isinstance(child, dict):
            raise SpecError(f"--set {path}: `{name}` is not a section")
        node = child
    node[last] = value


def override(tree: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping itself, with values set by dotted path.

    Raises
    ------
    SpecError
        A path leads through something that is not a section.
    """
    for path, value in settings.items():
        _set(tree, path, value)
    return tree


def parse_overrides(settings: Iterable[str]) -> dict[str, Any]:
    """Turn ``a.b=c`` texts into a mapping from dotted path to value (parsed as YAML).

    Raises
    ------
    SpecError
        A text has no ``=`` or its value is not YAML.
    """
    out: dict[str, Any] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not all(path.split(".")):
            raise SpecError(f"--set {setting}: expected a.b=value")
        try:
            out[path] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise SpecError(f"--set {path}: the value is not valid YAML") from None
        if isinstance(out[path], str):  # YAML 1.1 reads 1e-9 as text
            try:
                out[path] = float(out[path])
            except ValueError:
                out[path] = out[path]
    return out


def load_spec(path: str | Path, overrides: Mapping[str, Any] | None = None) -> ReleaseSpec:
    """Read a spec file, apply overrides, resolve its schema and validate it.

    Parameters
    ----------
    path : str or Path
        The YAML file.
    overrides : mapping of str to object, optional
        Values by dotted path, such as ``{"synthesis.records": 1000}``.

    Raises
    ------
    SpecError
        The file cannot be read, is not YAML or is not a valid spec; the message names each setting.
    """
    tree = load_yaml(path)
    if not isinstance(tree, dict):
        raise SpecError(f"{path} is not a spec: expected a mapping with `kind`, `name`, `data` ...")
    return build_spec(override(tree, overrides or {}), base=Path(path).parent, source=str(path))


def change(spec: ReleaseSpec, settings: Mapping[str, Any]) -> ReleaseSpec:
    """A spec with other values at some dotted paths.

    Raises
    ------
    SpecError
        The changed spec is not valid.
    """
    return build_spec(override(spec.model_dump(mode="json", by_alias=True), settings))


def build_spec(tree: Mapping[str, Any], *, base: Path | None = None, source: str = "the spec") -> ReleaseSpec:
    """Validate a spec given as a mapping; a schema given by path is read from `base`.

    Raises
    ------
    SpecError
        The mapping is not a valid spec, or the schema's path leaves the folder of the spec.
    """
    tree = dict(tree)
    kind = tree.get("kind")
    if kind not in KINDS:
        raise SpecError(f"{source}: `kind` is {kind!r}; expected one of {', '.join(KINDS)}")
    schema = tree.get("schema")
    if isinstance(schema, str):
        inside = PurePosixPath(schema)
        if base is None or inside.is_absolute() or ".." in inside.parts:
            raise SpecError(f"{source}: `schema` is a path below the folder of the spec, without `..`")
        tree["schema"] = Schema.from_yaml(base / schema)
    try:
        return KINDS[kind].model_validate(tree)
    except ValidationError as error:
        raise SpecError(f"{source} is not a valid spec:\n{validation_message(error)}") from None


def json_schema() -> dict[str, Any]:
    """JSON schema of a spec file (``schema`` may also be the path of a schema file)."""
    schema = ReleaseSpec.model_json_schema(by_alias=True)
    schema["properties"]["schema"] = {
        "anyOf": [{"type": "string"}, schema["properties"]["schema"]],
        "description": "The schema, or the path of its file below the folder of the spec.",
    }
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema
