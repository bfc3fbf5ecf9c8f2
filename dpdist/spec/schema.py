"""The public schema of a table: attribute names, domains, buckets and policies.

A schema is public. It never comes from the data: every value, bound and bucket is declared before a record is
read, so that none of them can carry information about a record.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    Field,
    FiniteFloat,
    ValidationInfo,
    field_validator,
    model_validator,
)

from dpdist.errors import SpecError
from dpdist.spec.rules import Rule, Rules, compiled
from dpdist.spec.strict import Frozen, Value
from dpdist.spec.strict_yaml import load_yaml
from dpdist.spec.validation import validated

if TYPE_CHECKING:
    from dpdist.api.checked import SchemaCheck

Number = Annotated[int | FiniteFloat, Field(union_mode="smart")]

LARGEST_INTEGER = 1 << 62
"""Largest absolute value of an integer in a domain."""

MAX_CARDINALITY = 65_536
"""Largest domain of one attribute, in values."""


class Category(Frozen):
    """A declared category that stands for missing or out-of-domain values."""

    category: str = Field(min_length=1, description="Label of the category.")


class Width(Frozen):
    """Buckets of equal width, in consecutive values."""

    width: int = Field(ge=1, description="Number of consecutive values in a bucket.")


class Edges(Frozen):
    """Intervals given by the lower edge of each; the first is the lower bound of the domain."""

    edges: tuple[Number, ...] = Field(min_length=1, description="Lower edges, strictly increasing.")

    @model_validator(mode="after")
    def _increasing(self) -> Edges:
        if any(a >= b for a, b in zip(self.edges, self.edges[1:], strict=False)):
            raise ValueError("edges must be strictly increasing")
        return self


class Count(Frozen):
    """A number of bins of equal width (of integers: to one unit) over the bounds."""

    count: int = Field(ge=1, le=MAX_CARDINALITY, description="Number of bins.")


class Groups(Frozen):
    """Buckets as lists of values; each value stands in exactly one."""

    groups: tuple[tuple[Value, ...], ...] = Field(min_length=1, description="One list of values per bucket.")


class Prefix(Frozen):
    """Groups of values that begin with the same characters."""

    prefix: int = Field(ge=1, description="Number of first characters of each value, which are all texts.")


class Attribute(Frozen):
    """One column of the table.

    The *domain* has ``cardinality`` codes ``0 .. cardinality - 1``: the values (or bins) in their declared order,
    then the missing category if one is declared. A number without bins has no codes: it is *continuous*, and its
    records are float64 values within the bounds.
    """

    name: str = Field(min_length=1, description="Name of the column.")
    kind: Literal["categorical", "ordinal", "integer", "number"]
    """categorical: unordered values; ordinal: ordered values; integer: a range of integers; number: an interval of real
    numbers.
    """
    values: tuple[Value, ...] | None = None
    """The domain of a categorical or ordinal attribute, in order."""
    labels: tuple[str, ...] | None = None
    """A label for each value (or bin), for releases written with `values: labels`."""
    bounds: tuple[Number, Number] | None = None
    """Smallest and largest value of an integer or number attribute, both included."""
    bins: Count | Edges | None = None
    """Public bins: {count: n} or {edges: [...]}, the lower edges. Without them each integer is a value, and a number
    stays continuous. The last bin of a number includes the upper bound.
    """
    buckets: Width | Edges | Groups | tuple[int, ...] | None = None
    """Coarser values used where the attribute is a parent: {width: w}, {edges: [...]}, {groups: [[...], ...]} or one
    bucket number per value.
    """
    levels: tuple[Prefix | Width | Edges | Groups | tuple[int, ...], ...] = ()
    """A public hierarchy of the values, from fine to coarse, each as `buckets` are or {prefix: n}, the values' first
    characters: a synthesis of many values measures the finest level of about twenty groups first. Each level is a
    function of the one before.
    """
    missing: Literal["refuse", "drop"] | Category = "refuse"
    """Policy for missing values: refuse, drop or {category: NAME}."""
    missing_values: tuple[str, ...] = ()
    """Texts that mean missing, besides nulls and (in CSV) empty fields."""
    aliases: dict[str, Value] = Field(default_factory=dict)
    """Other spellings found in the data: text -> declared value."""
    out_of_domain: Literal["refuse", "drop", "clip"] | Category = "refuse"
    """Policy for values outside the domain: refuse, drop, clip (ordered attributes) or {category: one of the values}.
    """

    @field_validator("bounds", "bins", "buckets", mode="after")
    @classmethod
    def _of_one_type(cls, field: Any, info: ValidationInfo) -> Any:
        """Bounds and edges of a number are floats, of the others integers."""
        kind, name = info.data.get("kind"), info.data.get("name")
        if isinstance(field, Edges):
            return Edges(edges=_one_type(field.edges, kind, name))
        return _one_type(field, kind, name) if info.field_name == "bounds" and field is not None else field

    @model_validator(mode="after")
    def _consistent(self) -> Attribute:
        if set(map(str, self.aliases.values())) - set(map(str, self.values or ())):
            raise ValueError(f"attribute {self.name!r}: an alias points to a value that is not declared")
        if self.kind == "integer":
            lo, hi = self._bounded()
            if lo > hi:
                raise ValueError(f"attribute {self.name!r}: the lower bound exceeds the upper bound")
            if lo < -LARGEST_INTEGER or hi > LARGEST_INTEGER:
                raise ValueError(f"attribute {self.name!r}: bounds lie within -2^62 and 2^62")
            if isinstance(self.bins, Edges) and (self.bins.edges[0] != lo or self.bins.edges[-1] > hi):
                raise ValueError(
                    f"attribute {self.name!r}: bin edges are lower ends: the first is {lo}, the last at most {hi}"
                )
            if isinstance(self.bins, Count) and self.bins.count > hi - lo + 1:
                raise ValueError(f"attribute {self.name!r}: more bins than integers in the bounds")
        elif self.kind == "number":
            self._check_number()
            if self.is_continuous:
                return self
        else:
            if self.bounds is not None or self.bins is not None:
                raise ValueError(f"attribute {self.name!r}: a {self.kind} attribute takes `values` only")
            if not self.values:
                raise ValueError(f"attribute {self.name!r}: declare its `values`, such as [north, south]")
            if len(set(map(str, self.values))) != len(self.values):
                raise ValueError(f"attribute {self.name!r}: a value is declared twice")
            if len({isinstance(v, int) for v in self.values}) > 1:
                raise ValueError(f"attribute {self.name!r}: values are all integers or all texts (quote them)")
            if any(isinstance(v, int) and abs(v) > LARGEST_INTEGER for v in self.values):
                raise ValueError(f"attribute {self.name!r}: values lie within -2^62 and 2^62")
            if isinstance(self.missing, Category) and self.missing.category in map(str, self.values):
                raise ValueError(f"attribute {self.name!r}: the missing category is also a declared value")
        if self.labels is not None and len(self.labels) != self._declared:
            raise ValueError(f"attribute {self.name!r}: expected {self._declared} labels, one per value")
        if self.out_of_domain == "clip" and self.kind == "categorical":
            raise ValueError(f"attribute {self.name!r}: `clip` needs an ordered attribute")
        if isinstance(self.out_of_domain, Category):
            allowed = set(map(str, self.values or ())) | (
                {self.missing.category} if isinstance(self.missing, Category) else set()
            )
            if self.out_of_domain.category not in allowed:
                raise ValueError(
                    f"attribute {self.name!r}: the out-of-domain category must be a value or the missing category"
                )
        if self.cardinality > MAX_CARDINALITY:
            raise ValueError(f"attribute {self.name!r}: the domain exceeds {MAX_CARDINALITY} values; declare `bins`")
        self.bucket_map  # noqa: B018  (validates the buckets)
        self.level_maps  # noqa: B018  (validates the levels)
        return self

    def _bounded(self) -> tuple[Any, Any]:
        """The bounds of an integer or a number, which have no `values`."""
        if self.values is not None:
            raise ValueError(f"attribute {self.name!r}: of kind {self.kind}, it takes `bounds`, not `values`")
        if self.bounds is None:
            raise ValueError(f"attribute {self.name!r}: declare its `bounds`, such as [0, 100]")
        return self.bounds

    def _check_number(self) -> None:
        """Refuse what a number attribute cannot be."""
        lo, hi = self._bounded()
        if lo >= hi:
            raise ValueError(f"attribute {self.name!r}: the lower bound of a number must be below the upper bound")
        if not np.isfinite(hi - lo):
            raise ValueError(f"attribute {self.name!r}: the bounds are too far apart for floats")
        if self.is_continuous:
            if self.buckets is not None or self.labels is not None or self.levels:
                raise ValueError(f"attribute {self.name!r}: buckets, levels and labels of a number need `bins`")
            if isinstance(self.missing, Category) or isinstance(self.out_of_domain, Category):
                raise ValueError(f"attribute {self.name!r}: a category among numbers needs `bins`")
            return
        edges = self.bin_edges
        if (np.diff(edges) <= 0).any():
            raise ValueError(f"attribute {self.name!r}: more bins than floats in the bounds")
        if edges[0] != lo or edges[-1] >= hi:
            raise ValueError(
                f"attribute {self.name!r}: the bins do not cover the domain: their edges are lower ends, the first is "
                f"the lower bound {lo:.15g}, and the last must lie below the upper bound {hi:.15g}, which is no edge"
            )

    @property
    def _declared(self) -> int:
        if self.kind not in ("integer", "number"):
            return len(self.values or ())
        if self.is_continuous:
            raise SpecError(
                f"attribute {self.name!r} is a continuous number, which has no codes: declare `bins` (public ones) "
                "where a method needs categories"
            )
        return len(self.bin_edges)

    @cached_property
    def bin_edges(self) -> NDArray[Any]:
        """Lower edges of the bins, ascending: int64 of integers (one per integer without `bins`), float64 of numbers.
        Raises TypeError: the attribute has neither.
        """
        if self.bounds is None or self.is_continuous:
            raise TypeError(f"attribute {self.name!r} has no bins")
        lo, hi = self.bounds
        if self.kind == "number":
            if isinstance(self.bins, Count):
                return np.linspace(lo, hi, self.bins.count + 1)[:-1]
            return np.array(self.bins.edges if isinstance(self.bins, Edges) else (), np.float64)
        lo, hi = int(lo), int(hi)
        if isinstance(self.bins, Edges):
            return np.array(self.bins.edges, np.int64)
        if isinstance(self.bins, Count):
            return np.array([lo + i * (hi - lo + 1) // self.bins.count for i in range(self.bins.count)], np.int64)
        if hi - lo + 1 > MAX_CARDINALITY:
            raise ValueError(f"attribute {self.name!r}: the domain exceeds {MAX_CARDINALITY} values; declare `bins`")
        return np.arange(lo, hi + 1, dtype=np.int64)

    @property
    def is_binned(self) -> bool:
        """Whether a code stands for an interval of integers or numbers."""
        return self.bins is not None

    @property
    def is_continuous(self) -> bool:
        """Whether the records are float64 values instead of codes: a number without bins."""
        return self.kind == "number" and self.bins is None

    @property
    def missing_code(self) -> int | None:
        """Code of the missing category, or None."""
        return self._declared if isinstance(self.missing, Category) else None

    @property
    def cardinality(self) -> int:
        """Number of codes. Raises SpecError: the attribute is continuous."""
        return self._declared + isinstance(self.missing, Category)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Smallest unsigned dtype that holds the codes; float64 if the attribute is continuous."""
        if self.is_continuous:
            return np.dtype(np.float64)
        return np.min_scalar_type(self.cardinality - 1)

    @cached_property
    def bucket_map(self) -> NDArray[np.uint32]:
        """Bucket of each code, uint32, shape (cardinality,), numbered from 0 in order of first appearance."""
        return self._grouped(self.buckets, "bucket")

    @cached_property
    def level_maps(self) -> tuple[NDArray[np.uint32], ...]:
        """For each level the group of each code, as `bucket_map`."""
        maps = tuple(self._grouped(level, "level") for level in self.levels)
        for number, (fine, coarse) in enumerate(pairwise(maps), 2):
            pairs = np.unique(np.stack([fine, coarse]), axis=1)
            if pairs.shape[1] > int(fine.max()) + 1:
                raise ValueError(
                    f"attribute {self.name!r}: level {number} is no function of level {number - 1}: one group there "
                    "has values of several here; order levels from fine to coarse"
                )
        return maps

    def _grouped(
        self, groups: Prefix | Width | Edges | Groups | tuple[int, ...] | None, what: str
    ) -> NDArray[np.uint32]:
        """Group of each code; a missing category is one of its own."""
        n = self._declared
        if groups is None:
            raw: Sequence[int] = range(n)
        elif isinstance(groups, Width):
            raw = [code // groups.width for code in range(n)]
        elif isinstance(groups, Edges):
            raw = self._between(groups, what)
        elif isinstance(groups, Prefix):
            raw = self._beginning(groups.prefix)
        elif isinstance(groups, Groups):
            where = {str(v): g for g, group in enumerate(groups.groups) for v in group}
            if self.kind == "number":
                raise ValueError(f"attribute {self.name!r}: numbers have {what}s by {{width: w}} or {{edges: [...]}}")
            names = list(map(str, self.values if self.values is not None else self.bin_edges.tolist()))
            if wrong := self._misplaced(groups, names):
                raise ValueError(f"attribute {self.name!r}: each value stands in exactly one {what} group, and {wrong}")
            raw = [where[v] for v in names]
        else:
            if len(groups) != n:
                raise ValueError(f"attribute {self.name!r}: expected {n} {what} numbers, one per value")
            raw = groups
        dense: dict[int, int] = {}
        out = [dense.setdefault(int(b), len(dense)) for b in raw]
        if isinstance(self.missing, Category):
            out.append(len(dense))
        result = np.array(out, np.uint32)
        result.setflags(write=False)
        return result

    def _beginning(self, length: int) -> list[int]:
        """Numbers of the groups of values that begin with the same characters."""
        if not self.values or any(isinstance(value, int) for value in self.values):
            raise ValueError(
                f"attribute {self.name!r}: a level by `prefix` needs values that are texts; group numbers by "
                "{edges: [...]} or {width: w}"
            )
        found: dict[str, int] = {}
        return [found.setdefault(str(value)[:length], len(found)) for value in self.values]

    @staticmethod
    def _misplaced(groups: Groups, names: list[str]) -> str:
        """Which values stand in no group, in several, or are none; empty where each stands in one."""
        listed = Counter(str(v) for group in groups.groups for v in group)
        for what, wrong in (
            ("in none", [name for name in names if name not in listed]),
            ("no value", sorted(set(listed) - set(names))),
            ("there more than once", [name for name, times in listed.items() if times > 1]),
        ):
            if wrong:
                more = f" and {len(wrong) - 3:,} more are" if len(wrong) > 3 else " is" if len(wrong) == 1 else " are"
                return f"{', '.join(map(repr, wrong[:3]))}{more} {what}"
        return ""

    def _between(self, groups: Edges, what: str) -> list[int]:
        """Numbers of the intervals that values are in: of bins, or of values that are integers."""
        if self.bounds is not None:
            lows: Any = self.bin_edges
            if groups.edges[0] != self.bounds[0]:
                raise ValueError(f"attribute {self.name!r}: {what} edges start at the lower bound")
        elif all(isinstance(value, int) for value in self.values or ("",)):
            lows = np.array(self.values)
            if groups.edges[0] > lows.min():
                raise ValueError(f"attribute {self.name!r}: {what} edges start at the least value or below")
        else:
            raise ValueError(f"attribute {self.name!r}: {what} edges need an integer or number attribute, or integers")
        return [int(place) for place in np.searchsorted(groups.edges, lows, side="right")]

    @property
    def bucket_count(self) -> int:
        """Number of buckets."""
        return int(self.bucket_map.max()) + 1


class Schema(Frozen):
    """The attributes of a table, in the order of release."""

    attributes: tuple[Attribute, ...] = Field(min_length=1, description="The columns, in the order of release.")
    rules: tuple[Rule, ...] = ()
    """What no record can be, as the public knows. No record that a synthesis releases breaks a rule."""

    @model_validator(mode="after")
    def _unique(self) -> Schema:
        names = [a.name for a in self.attributes]
        if len(set(names)) != len(names):
            raise ValueError("attribute names must differ")
        self.forbidden  # noqa: B018  (validates the rules)
        return self

    @cached_property
    def forbidden(self) -> Rules:
        """What the rules forbid."""
        return compiled(self)

    @property
    def names(self) -> tuple[str, ...]:
        """Attribute names, in order."""
        return tuple(a.name for a in self.attributes)

    @property
    def continuous(self) -> tuple[str, ...]:
        """Names of the continuous attributes, which have no codes."""
        return tuple(a.name for a in self.attributes if a.is_continuous)

    @property
    def dropping(self) -> tuple[str, ...]:
        """Names of the attributes, and texts of the rules, with a policy that drops records."""
        names = (a.name for a in self.attributes if "drop" in (a.missing, a.out_of_domain))
        return (*names, *(rule.text for rule in self.rules if rule.broken == "drop"))

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """Number of codes of each attribute."""
        return tuple(a.cardinality for a in self.attributes)

    @property
    def level_maps(self) -> tuple[tuple[NDArray[np.uint32], ...], ...]:
        """The groups of each attribute's codes, from fine to coarse."""
        return tuple(a.level_maps for a in self.attributes)

    @property
    def bucket_counts(self) -> tuple[int, ...]:
        """Number of buckets of each attribute."""
        return tuple(a.bucket_count for a in self.attributes)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the canonical JSON of the schema, in hexadecimal."""
        text = json.dumps(self.model_dump(mode="json", exclude_defaults=True), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def check(self, table: Any, *, custodian: bool = False, **layout: Any) -> SchemaCheck:
        """Say whether a table fits the schema. Costs nothing.

        Parameters
        ----------
        table : path or table
            Paths, or a table in memory, as for `dpdist.release`.
        custodian : bool
            Whether you keep the table. Its records are read only then: what they say is private, and for you alone.
            Else only the names and types of columns and the formats of files are looked at, which are public.
        **layout
            `format`, `csv` and `storage` of files, as a spec has them in `data`.

        Returns
        -------
        SchemaCheck
        """
        module = import_module("dpdist.api.checked")  # of a layer above this one, which has the tables
        found: SchemaCheck = module.check_schema(self, table, custodian=custodian, layout=layout)
        return found

    @classmethod
    def from_yaml(cls, path: str | Path) -> Schema:
        """Read a schema file. Raises SpecError: the file is missing, is not YAML or does not describe a schema."""
        tree, names = load_yaml(path), [field.alias or name for name, field in cls.model_fields.items()]
        if not isinstance(tree, dict):
            raise SpecError(f"{path} is not a schema: expected a mapping with `attributes`")
        if not set(tree) & set(names):  # another file, of which nothing is told
            raise SpecError(
                f"{path} is not a schema: expected the settings {', '.join(names)}, and it has none of them"
            )
        return validated(cls, tree, str(path), what="schema")


def _one_type(numbers: tuple[Any, ...], kind: str | None, name: str | None) -> tuple[Any, ...]:
    """Floats for a number, else integers. Raises ValueError: one is not an integer."""
    if kind == "number":
        return tuple(map(float, numbers))
    if any(int(number) != number for number in numbers):
        raise ValueError(f"attribute {name!r}: bounds and edges of integers are integers")
    return tuple(map(int, numbers))
