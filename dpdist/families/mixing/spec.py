"""The spec of a mixing release: class-wise noisy mixtures of a labelled table."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from dpdist.families.mixing.mixture import LARGEST_ORDER
from dpdist.federated.spec import FederatedRelease, HeldDataSpec
from dpdist.spec.attribute import Attribute
from dpdist.spec.groups import Category
from dpdist.spec.release import PrivacyLimit
from dpdist.spec.strict import MOST_RECORDS, Exact, Section, Value

SCALING_SHARE = 0.05  # share of the budget of the noisy means and deviations of the scaling


class MixingPrivacySpec(PrivacyLimit):
    """What the release may cost (add/remove adjacency)."""

    epsilon: float = Field(ge=1e-6, le=27, allow_inf_nan=False)
    """Budget of the whole release; beyond 27 a guarantee says nothing."""
    delta: float = Field(gt=0, lt=1, allow_inf_nan=False, description="Budget of the whole release.")
    check_share: Exact = Field(default=Fraction(1, 50), gt=0, lt=1)
    """Share of the checks of the class minima."""


class ClassSpec(Section):
    """One class."""

    minimum: int = Field(ge=1, le=MOST_RECORDS)
    """Declared public lower bound on its records; checked with a noisy count. A class that fails the check is left out,
    and the manifest says so."""
    records: int = Field(ge=1, le=MOST_RECORDS)
    """Mixtures to release; absent where mixing.records shares them out."""


class MixturesSpec(Section):
    """How records are mixed, and what is released of the mixtures."""

    label: str = Field(alias="class", description="The attribute that holds the class.")
    classes: Mapping[Value, ClassSpec] = Field(min_length=1)
    """The classes to release, by value; records of other classes are not used."""
    records: int | None = Field(default=None, ge=1, le=MOST_RECORDS, exclude=True)
    """Mixtures of all classes together, instead of a number for each: every class gets the same, rounded down
    (balanced, as published)."""
    order: int | Literal["auto"] = "auto"
    """Records in a mixture; auto takes the one with the least noise for the spread that it leaves, which is public."""
    scaling: Literal["bounds", "centred", "standardised"] = "bounds"
    """Scale ordered attributes by their declared bounds; centre everything at noisy means, too; or divide ordered
    attributes by noisy deviations as well (means and deviations are charged)."""
    clip: float | None = Field(default=None, ge=1e-6, le=1e6, allow_inf_nan=False)
    """Largest L2 norm of a record's vector, in scaled coordinates (ordered attributes from -1 to 1); default: the
    largest of the domain (bounds), or the noisy root mean square."""
    noise_on_labels: Literal["none", "paper"] = "none"
    """Labels need no noise: within a class they are all the same. `paper` adds it, as published."""
    release: Literal["records", "vectors"] = "records"
    """Decode mixtures into the schema of the table, or release vectors."""
    spread: Literal["mixtures", "restored"] = "restored"
    """Release mixtures as they are, or scaled so that they vary like records (costs nothing)."""

    @model_validator(mode="before")
    @classmethod
    def _shared_out(cls, tree: Any) -> Any:
        """Write the number of each class where `records` shares them out, so that the classes say all."""
        if not isinstance(tree, dict) or tree.get("records") is None or not isinstance(tree.get("classes"), Mapping):
            return tree
        total, classes = tree["records"], tree["classes"]
        if not isinstance(total, int):
            return tree
        if any(isinstance(one, Mapping) and "records" in one for one in classes.values()):
            raise ValueError("mixing.records shares mixtures out to all classes: give it, or `records` of each class")
        if total < len(classes):
            raise ValueError(f"mixing.records: {len(classes)} classes need a mixture each")
        each = total // max(len(classes), 1)
        full = {value: {**one, "records": each} if isinstance(one, Mapping) else one for value, one in classes.items()}
        return tree | {"classes": full}

    @field_validator("order", mode="before")
    @classmethod
    def _no_other_word(cls, order: Any) -> Any:
        if isinstance(order, (str, list)) and order != "auto":
            raise ValueError(f"give a number from 1 to {LARGEST_ORDER}, or auto")
        return order

    @model_validator(mode="after")
    def _bounded(self) -> MixturesSpec:
        if isinstance(self.order, int) and not 1 <= self.order <= LARGEST_ORDER:
            raise ValueError(f"mixing.order: from 1 to {LARGEST_ORDER}, or auto")
        if len(set(map(str, self.classes))) < len(self.classes):
            raise ValueError("mixing.classes: a class is there twice, as a number and as a text; keep one of them")
        return self


class MixingDataSpec(HeldDataSpec):
    """The table a release reads, or how the tables of its clients are laid out."""

    minimum_records: int = Field(ge=1, le=MOST_RECORDS)
    """Declared public lower bound on the number of records (federated: of each client), by which tasks are sized. It is
    not checked: the guarantee rests on the minima of the classes, which are."""


class MixingSpec(FederatedRelease):
    """Class-wise mixtures with Gaussian noise (DP-CDA)."""

    papers: ClassVar[tuple[str, ...]] = ("Saha, Tonoy, Imtiaz: DP-CDA, 2024, doi:10.48550/arXiv.2411.16121",)
    protects_units: ClassVar[bool] = True

    kind: Literal["mixing"]
    data: MixingDataSpec
    privacy: MixingPrivacySpec
    mixing: MixturesSpec

    @model_validator(mode="after")
    def _consistent(self) -> MixingSpec:
        if self.mixing.label not in self.table.names:
            raise ValueError(f"mixing.class: the schema has no attribute {self.mixing.label!r}")
        if self.label.is_continuous:
            raise ValueError(f"mixing.class: {self.mixing.label!r} is a continuous number; declare `bins`")
        if len(self.table.attributes) < 2:
            raise ValueError("mixing: the schema needs an attribute in addition to the class")
        unknown = sorted(set(map(str, self.mixing.classes)) - set(class_names(self.label)))
        if unknown:
            names = class_names(self.label)
            known = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
            bins = ", the lower edges of its bins" if self.label.is_binned else ""
            raise ValueError(
                f"mixing.classes: {', '.join(map(repr, unknown))} is no value of {self.mixing.label!r}, whose values "
                f"are {known}{bins}"
            )
        if self.federated is not None and self.federated.mailbox is not None:
            raise ValueError("federated.mailbox: mixtures are sent by Dask workers alone: leave it out")
        if self.federated is not None and self.mixing.scaling != "bounds":
            raise ValueError("mixing.scaling: clients scale by the declared bounds; set it to bounds")
        return self

    @property
    def protects_only_units(self) -> bool:
        """One record more of a unit may exchange one that is sampled, which is not what a unit's presence does."""
        return self.unit is not None

    @property
    def label(self) -> Attribute:
        """The attribute that holds the class."""
        return self.table.attributes[self.table.names.index(self.mixing.label)]

    @property
    def class_minima(self) -> dict[str, dict[str, int]]:
        """The minima of the classes."""
        return {self.mixing.label: {str(value): one.minimum for value, one in self.mixing.classes.items()}}

    @property
    def class_codes(self) -> tuple[int, ...]:
        """Code of each class that is released, in the order of the spec."""
        names = class_names(self.label)
        return tuple(names.index(str(value)) for value in self.mixing.classes)


def class_names(label: Attribute) -> list[str]:
    """Text of each code of the class attribute."""
    names = list(map(str, label.values or map(label.shown, label.bin_edges.tolist())))
    return [*names, label.missing.category] if isinstance(label.missing, Category) else names
