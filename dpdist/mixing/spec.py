"""The spec of a mixing release: class-wise noisy mixtures of a labelled table."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Literal

from pydantic import Field, model_validator

from dpdist.mixing.mixture import LARGEST_ORDER
from dpdist.schema import Attribute, Category, Value
from dpdist.spec import Exact, PrivacyLimit, ReleaseSpec, Section


class MixingPrivacySpec(PrivacyLimit):
    """What the release may cost (add/remove adjacency)."""

    epsilon: float = Field(gt=0, le=1e6, allow_inf_nan=False, description="Budget of the whole release.")
    delta: float = Field(gt=0, lt=1, allow_inf_nan=False, description="Budget of the whole release.")
    check_share: Exact = Field(
        default=Fraction(1, 50), gt=0, lt=1, description="Share of the checks of the class minima."
    )
    scaling_share: Exact = Field(
        default=Fraction(1, 20), gt=0, lt=1, description="Share of the noisy means and deviations of the scaling."
    )


class ClassSpec(Section):
    """One class."""

    minimum: int = Field(
        ge=1,
        description="Declared public lower bound on its records; checked with a noisy count. A class that fails the "
        "check is left out, and the manifest says so.",
    )
    records: int = Field(ge=1, description="Mixtures to release.")


class MixturesSpec(Section):
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


class MixingSpec(ReleaseSpec):
    """Class-wise mixtures with Gaussian noise (DP-CDA)."""

    kind: Literal["mixing"]
    privacy: MixingPrivacySpec
    mixing: MixturesSpec

    @model_validator(mode="after")
    def _consistent(self) -> MixingSpec:
        if self.mixing.label not in self.table.names:
            raise ValueError(f"mixing.class: the schema has no attribute {self.mixing.label!r}")
        if self.label.is_continuous:
            raise ValueError(f"mixing.class: {self.mixing.label!r} is a continuous number; declare `bins`")
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


def class_names(label: Attribute) -> list[str]:
    """Text of each code of the class attribute."""
    values = label.values if label.values is not None else label.bin_edges.tolist()
    names = [str(value) for value in values]
    return [*names, label.missing.category] if isinstance(label.missing, Category) else names
