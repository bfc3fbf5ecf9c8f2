"""The spec of a mixing release: class-wise noisy mixtures of a labelled table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dpdist.mixing.mixture import LARGEST_ORDER
from dpdist.schema import Attribute, Category, Schema, Value
from dpdist.spec import ClusterSpec, DataSpec, Exact, OutputSpec


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", ignored_types=(cached_property,), validate_by_name=True, validate_by_alias=True
    )


class MixingPrivacySpec(_Section):
    """What the release may cost (add/remove adjacency)."""

    epsilon: float = Field(gt=0, le=1e6, allow_inf_nan=False, description="Budget of the whole release.")
    delta: float = Field(gt=0, lt=1, allow_inf_nan=False, description="Budget of the whole release.")
    check_share: Exact = Field(
        default=Fraction(1, 50), gt=0, lt=1, description="Share of the checks of the class minima."
    )
    scaling_share: Exact = Field(
        default=Fraction(1, 20), gt=0, lt=1, description="Share of the noisy means and deviations of the scaling."
    )
    limit: float | None = Field(default=None, gt=0, description="Refuse to run if the release costs more than this.")


class ClassSpec(_Section):
    """One class."""

    minimum: int = Field(
        ge=1,
        description="Declared public lower bound on its records; checked with a noisy count. A class that fails the "
        "check is left out, and the manifest says so.",
    )
    records: int = Field(ge=1, description="Mixtures to release.")


class MixturesSpec(_Section):
    """How records are mixed, and what is released of the mixtures."""

    label: str = Field(alias="class", description="The attribute that holds the class.")
    classes: Mapping[Value, ClassSpec] = Field(
        min_length=1, description="The classes to release, by value; records of other classes are not used."
    )
    order: int | Literal["auto"] = Field(
        default="auto",
        description="Records in a mixture; auto takes the one with the least noise for the spread that it leaves.",
    )
    scaling: Literal["bounds", "centred", "standardised"] = Field(
        default="bounds",
        description="Scale ordered attributes by their declared bounds; centre everything at noisy means, too; or "
        "divide ordered attributes by noisy deviations as well (means and deviations are charged).",
    )
    clip: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Largest L2 norm of a record's vector; default: the largest of the domain (bounds), or the noisy "
        "root mean square.",
    )
    noise_on_labels: Literal["none", "paper"] = Field(
        default="none",
        description="Labels need no noise: within a class they are all the same. `paper` adds it, as published.",
    )
    release: Literal["records", "vectors"] = Field(
        default="records", description="Decode mixtures into the schema of the table, or release vectors."
    )
    spread: Literal["mixtures", "restored"] = Field(
        default="restored",
        description="Release mixtures as they are, or scaled so that they vary like records (costs nothing).",
    )

    @model_validator(mode="after")
    def _bounded(self) -> MixturesSpec:
        if isinstance(self.order, int) and not 1 <= self.order <= LARGEST_ORDER:
            raise ValueError(f"mixing.order: from 1 to {LARGEST_ORDER}, or auto")
        return self


class MixingSpec(_Section):
    """Class-wise mixtures with Gaussian noise (DP-CDA)."""

    kind: Literal["mixing"]
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
    privacy: MixingPrivacySpec
    mixing: MixturesSpec

    @model_validator(mode="after")
    def _consistent(self) -> MixingSpec:
        if self.mixing.label not in self.table.names:
            raise ValueError(f"mixing.class: the schema has no attribute {self.mixing.label!r}")
        if len(self.table.attributes) < 2:
            raise ValueError("mixing: the schema needs an attribute besides the class")
        unknown = sorted(set(map(str, self.mixing.classes)) - set(class_names(self.label)))
        if unknown:
            raise ValueError(f"mixing.classes: {', '.join(map(repr, unknown))} is no value of {self.mixing.label!r}")
        return self

    @property
    def label(self) -> Attribute:
        """The attribute that holds the class."""
        return self.table.attributes[self.table.names.index(self.mixing.label)]

    @property
    def class_codes(self) -> tuple[int, ...]:
        """Code of each class that is released, in the order of the spec."""
        names = class_names(self.label)
        return tuple(names.index(str(value)) for value in self.mixing.classes)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of what decides the released bytes: all but where it runs and where its files are."""
        public = self.model_dump(mode="json", by_alias=True, exclude={"cluster", "ledger", "work"})
        del public["data"]["storage"], public["output"]["storage"], public["output"]["path"]
        return hashlib.sha256(json.dumps(public, sort_keys=True).encode()).hexdigest()


def class_names(label: Attribute) -> list[str]:
    """Text of each code of the class attribute."""
    values = label.values if label.values is not None else label.bin_edges.tolist()
    names = [str(value) for value in values]
    return [*names, label.missing.category] if isinstance(label.missing, Category) else names
