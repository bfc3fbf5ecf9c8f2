"""The public schema of a table: attribute names, domains, buckets and policies.

A schema is public. It never comes from the data: every value, bound and bucket is declared before a record is
read, so that none of them can carry information about a record.
"""

from __future__ import annotations

import hashlib
import json
import math
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_serializer,
    model_validator,
)

from dpdist.errors import SpecError
from dpdist.privacy.formatting import Displayed, Fact
from dpdist.spec.groups import (
    DAY,
    DatedKind,
    Edges,
    Every,
    Groups,
    Number,
    Prefix,
    Width,
    group_map,
    level_maps,
    number_of,
    periods,
    text_of,
)
from dpdist.spec.rules import Rule, Rules, compiled
from dpdist.spec.strict import Frozen, Value
from dpdist.spec.strict_yaml import load_yaml, write_yaml
from dpdist.spec.validation import validated

if TYPE_CHECKING:
    from dpdist.api.schemas import SchemaCheck

LARGEST_INTEGER = 1 << 62
"""Largest absolute value of an integer in a domain."""

MAX_CARDINALITY = 65_536
"""Largest domain of one attribute, in values."""


End = Annotated[Number, WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "number"}, {"type": "string"}]})]
"""A number; of a date or a datetime written as a text."""


class Category(Frozen):
    """A declared category that stands for missing or out-of-domain values."""

    category: str = Field(min_length=1, description="Label of the category.")


class Count(Frozen):
    """A number of bins of equal width (of integers: to one unit) over the bounds."""

    count: int = Field(ge=1, le=MAX_CARDINALITY, description="Number of bins.")


class About(Frozen):
    """What a table is about, for people and catalogues; every field is optional."""

    title: str | None = None
    """What it is called."""
    description: str | None = None
    """What it holds, in a paragraph."""
    publisher: str | None = None
    """Who publishes it."""
    contact: str | None = None
    """Where questions go."""
    licence: str | None = None
    """Its licence: a name such as CC-BY-4.0, or an address."""
    citation: str | None = None
    """How to cite it; by default publisher, title, year and release."""
    period: str | None = None
    """The time that it covers, such as 2024 or 2024-01-01/2024-12-31."""
    url: str | None = None
    """Its page."""


class Attribute(Frozen):
    """One column of the table.

    The *domain* has ``cardinality`` codes ``0 .. cardinality - 1``: the values (or bins) in their declared order,
    then the missing category if one is declared. A number without bins has no codes: it is *continuous*, and its
    records are float64 values within the bounds.
    """

    name: str = Field(min_length=1, description="Name of the column.")
    kind: Literal["categorical", "ordinal", "integer", "number", "date", "datetime"]
    """categorical: unordered values; ordinal: ordered values; integer: a range of integers; number: an interval of real
    numbers; date: days; datetime: moments, to a second, without a time zone."""
    label: str | None = None
    """What the column is called for people."""
    unit: str | None = None
    """What its numbers are counted in, such as years or EUR."""
    description: str | None = None
    """What it says, in a sentence."""
    values: tuple[Value, ...] | None = None
    """The domain of a categorical or ordinal attribute, in order."""
    labels: tuple[str, ...] | None = None
    """A label for each value (or bin), for releases written with `values: labels`."""
    bounds: tuple[End, End] | None = None
    """Smallest and largest value, both included; of dates and datetimes in quotes, such as '2024-02-29'."""
    bins: Count | Edges | Every | None = None
    """Public bins: {count: n}, {edges: [...]}, the lower edges, or {every: month} of dates and datetimes. Without them
    each integer or day is a value, and a number stays continuous. The last bin of a number includes the upper bound."""
    format: str | None = Field(default=None, min_length=2)
    """How texts of dates or datetimes are written, such as %d/%m/%Y; by default 2024-02-29, or 2024-02-29 13:45:00."""
    heaps: tuple[End, ...] = ()
    """Values that many records share, such as an income of 0: each has a bin of its own among `bins`, so it is counted
    and released as it is."""
    step: Annotated[float, Field(gt=0)] | Every | None = None
    """What released numbers of a binned `number` are multiples of: 0.01 for cents, 1 for whole numbers. Of dates and
    datetimes {every: month}, as their bins are: the beginning of each is released, and `at_most` compares these."""
    buckets: Width | Edges | Groups | Every | tuple[int, ...] | None = None
    """Coarser values used where the attribute is a parent: {width: w}, {edges: [...]}, {groups: [[...], ...]},
    {every: month} or one bucket number per value."""
    levels: tuple[Prefix | Width | Edges | Groups | Every | tuple[int, ...], ...] = ()
    """A public hierarchy of the values, from fine to coarse, each as `buckets` are or {prefix: n}, the values' first
    characters: a synthesis of many values measures the finest level of about twenty groups first. Each level is a
    function of the one before."""
    missing: Literal["refuse", "drop"] | Category = "refuse"
    """Policy for missing values: refuse, drop or {category: NAME}."""
    missing_values: tuple[str, ...] = ()
    """Texts that mean missing, in addition to nulls and (in CSV) empty fields."""
    aliases: dict[str, Value] = Field(default_factory=dict)
    """Other spellings found in the data: text -> declared value."""
    out_of_domain: Literal["refuse", "drop", "clip"] | Category = "refuse"
    """Policy for values outside the domain: refuse, drop, clip (ordered attributes) or {category: one of the values}.
    """

    @field_validator("bounds", "bins", "heaps", mode="before")
    @classmethod
    def _of_moments(cls, field: Any, info: ValidationInfo) -> Any:
        """Read the ends of dates and datetimes as integers."""
        kind = info.data.get("kind")
        if kind not in ("date", "datetime") or isinstance(field, Edges) or field is None:
            return field
        if isinstance(field, dict):
            return field | {"edges": [number_of(end, kind) for end in field["edges"]]} if "edges" in field else field
        if not isinstance(field, list | tuple):
            return field
        written = isinstance(field, list)  # by people and in files, where a number would be a year
        numbers = [end if type(end) is int and not written else number_of(end, kind) for end in field]
        if info.field_name == "bounds" and kind == "datetime" and len(str(field[-1])) == len("2024-12-31"):
            numbers[-1] += (DAY - 1) * isinstance(field[-1], str)  # the whole day
        return numbers

    @model_serializer(mode="wrap")
    def _as_moments(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write the ends of dates and datetimes as `_of_moments` reads them."""
        tree: dict[str, Any] = write(self)
        if self.dated is not None:
            ends = {name: tree[name] for name in ("bounds", "heaps") if tree.get(name)}
            tree |= {name: [*map(self.shown, found)] for name, found in ends.items()}
            if isinstance(self.bins, Edges):
                tree["bins"] = {"edges": [*map(self.shown, self.bins.edges)]}
        return tree

    @field_validator("bounds", "bins", "heaps", "buckets", mode="after")
    @classmethod
    def _of_one_type(cls, field: Any, info: ValidationInfo) -> Any:
        """Bounds and edges of a number are floats, of the others integers."""
        kind, name = info.data.get("kind"), info.data.get("name")
        if isinstance(field, Edges):
            return Edges(edges=_one_type(field.edges, kind, name))
        if info.field_name not in ("bounds", "heaps") or not field:
            return field
        numbers = _one_type(field, kind, name)
        return tuple(sorted(set(numbers))) if info.field_name == "heaps" else numbers

    @model_validator(mode="after")
    def _consistent(self) -> Attribute:
        try:
            if self.dated is None and (self.format is not None or isinstance(self.bins, Every)):
                raise ValueError("`format` and bins {every: …} are those of kind: date or datetime")
            if self.is_whole or self.kind == "number":
                self._check_heaps()
                self._check_bounds()
            else:
                self._check_values()
            self._check_texts()
            if not self.is_continuous:
                if self.cardinality > MAX_CARDINALITY:
                    raise ValueError(f"the domain exceeds {MAX_CARDINALITY} values; declare `bins`")
                _ = self.bucket_map, self.level_maps  # which are refused where they do not fit the values
        except ValueError as error:
            raise ValueError(f"attribute {self.name!r}: {error}") from None
        return self

    def _check_bounds(self) -> None:
        """Refuse what an integer or a number cannot be."""
        if self.values is not None:
            raise ValueError(f"of kind {self.kind}, it takes `bounds`, not `values`")
        if self.bounds is None:
            raise ValueError("declare its `bounds`, such as [0, 100]")
        lo, hi = self.bounds
        if self.is_whole:
            if lo > hi:
                raise ValueError("the lower bound exceeds the upper bound")
            if lo < -LARGEST_INTEGER or hi > LARGEST_INTEGER:
                raise ValueError("bounds lie within -2^62 and 2^62")
            if isinstance(self.bins, Edges) and (self.bins.edges[0] != lo or self.bins.edges[-1] > hi):
                first, last = map(self.shown, (lo, hi))
                raise ValueError(f"bin edges are lower ends: the first is {first}, the last at most {last}")
            if isinstance(self.bins, Count) and self.bins.count > hi - lo + 1:
                raise ValueError("more bins than integers in the bounds")
            return
        if lo >= hi:
            raise ValueError("the lower bound of a number must be below the upper bound")
        if not np.isfinite(hi - lo):
            raise ValueError("the bounds are too far apart for floats")
        if self.is_continuous:
            if self.buckets is not None or self.labels is not None or self.levels:
                raise ValueError("buckets, levels and labels of a number need `bins`")
            if isinstance(self.missing, Category) or isinstance(self.out_of_domain, Category):
                raise ValueError("a category among numbers needs `bins`")
            return
        edges = self.bin_edges
        if (np.diff(edges) <= 0).any():
            raise ValueError("more bins than floats in the bounds")
        if edges[0] != lo or edges[-1] >= hi:
            raise ValueError(
                "the bins do not cover the domain: their edges are lower ends, the first is the lower bound "
                f"{lo:.15g}, and the last must lie below the upper bound {hi:.15g}, which is no edge"
            )

    def _check_heaps(self) -> None:
        """Refuse heaps and a step that do not go with the bins."""
        if isinstance(self.step, Every):
            if self.bins != self.step or self.heaps or not self._begins:
                raise ValueError(
                    "`step` {every: …} goes with the same `bins`, no heaps, and bounds that begin with one"
                )
            return
        if (self.heaps and self.bins is None) or (
            self.step is not None and (self.kind != "number" or self.bins is None)
        ):
            raise ValueError("`heaps` go with `bins`, and `step` with those of a number")
        lo, hi = self.bounds or (0, 0)
        if not all(lo <= heap < hi + self.is_whole for heap in self.heaps):
            raise ValueError(
                f"`heaps` lie within the bounds, from {self.shown(lo)} on and below the end of the last bin"
            )
        if self.step is not None and not hi - lo >= self.step >= (hi - lo) * 2.0**-52:
            raise ValueError("`step` is at most the width of the bounds, and within the precision of floats")

    def _check_values(self) -> None:
        """Refuse values that are no domain."""
        if self.bounds is not None or self.bins is not None or self.heaps or self.step is not None:
            raise ValueError(f"a {self.kind} attribute takes `values` only")
        if not self.values:
            raise ValueError("declare its `values`, such as [north, south]")
        if len(set(map(str, self.values))) != len(self.values):
            raise ValueError("a value is declared twice")
        if len({isinstance(v, int) for v in self.values}) > 1:
            raise ValueError("values are all integers or all texts (quote them)")
        if any(isinstance(v, int) and abs(v) > LARGEST_INTEGER for v in self.values):
            raise ValueError("values lie within -2^62 and 2^62")

    def _check_texts(self) -> None:
        """Refuse aliases, labels and policies that do not go with the values."""
        names = set(map(str, self.values or ()))
        if set(map(str, self.aliases.values())) - names:
            raise ValueError("an alias points to a value that is not declared")
        missing = {self.missing.category} if isinstance(self.missing, Category) else set()
        if missing & names:
            raise ValueError("the missing category is also a declared value")
        if self.labels is not None and len(self.labels) != self._declared:
            raise ValueError(f"expected {self._declared} labels, one per value")
        if self.out_of_domain == "clip" and self.kind == "categorical":
            raise ValueError("`clip` needs an ordered attribute")
        if isinstance(self.out_of_domain, Category) and self.out_of_domain.category not in names | missing:
            raise ValueError("the out-of-domain category must be a value or the missing category")

    def explain(self) -> str:
        """Return what the attribute holds, in words."""
        values, binned = [str(value) for value in self.values or ()], self.bounds is not None and self.is_binned
        if self.labels is not None and values:
            values = [f"{value} = {label}" for value, label in zip(values, self.labels, strict=True)]
        held = ", ".join(values[:12]) + f" and {len(values) - 12} more" * (len(values) > 12)
        if self.bounds is not None:
            held = " to ".join(str(self.shown(end)).removesuffix(".0") for end in self.bounds)
        told = [
            f"{self.kind} {held}" if binned or not values else f"{self.kind}: {held}",
            f"in {len(self.bin_edges):,} bins" if binned else None,
            f"or {self.missing.category}" if isinstance(self.missing, Category) else None,
            self.label and f"({self.label}{f', in {self.unit}' if self.unit else ''})",
        ]
        return " ".join(filter(None, told))

    @property
    def _declared(self) -> int:
        if self.kind in ("categorical", "ordinal"):
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
        heaps = np.array(self.heaps)
        if self.kind == "number":
            if isinstance(self.bins, Count):
                edges = np.linspace(lo, hi, self.bins.count + 1)[:-1]
            else:
                edges = np.array(self.bins.edges if isinstance(self.bins, Edges) else (), np.float64)
            return np.union1d(edges, [*heaps, *np.nextafter(heaps, math.inf)]) if self.heaps else edges
        lo, hi = int(lo), int(hi)
        if self.bins is not None:
            binned: Any = self.bins.edges if isinstance(self.bins, Edges) else ()
            if isinstance(self.bins, Every) and self.dated:
                binned = periods(lo, hi, self.bins, self.dated).tolist()
            if isinstance(self.bins, Count):
                binned = tuple(lo + i * (hi - lo + 1) // self.bins.count for i in range(self.bins.count))
            own = {int(edge) for heap in self.heaps for edge in (heap, heap + 1) if edge <= hi}
            return np.array(sorted({*map(int, binned), *own}) if own else binned, np.int64)
        if hi - lo + 1 > MAX_CARDINALITY:
            raise ValueError(f"the domain exceeds {MAX_CARDINALITY} values; declare `bins`")
        return np.arange(lo, hi + 1, dtype=np.int64)

    def bin_ends(self, *, shown: bool = False) -> tuple[NDArray[Any], NDArray[Any]]:
        """Lowest and highest integer of each bin, or the ends of the bins of a number, the upper one in the next bin.
        `shown` to people a heap begins and ends at its value, and the bin after it begins there.
        """
        lows = self.bin_edges
        highest = self.bounds[1] if self.bounds else lows[-1]
        highs = np.append(lows[1:] - self.is_whole, lows.dtype.type(highest))
        if shown and self.heaps and self.kind == "number":
            below = np.nextafter(lows, -math.inf)
            return np.where(np.isin(below, self.heaps), below, lows), np.where(np.isin(lows, self.heaps), lows, highs)
        return lows, highs

    @property
    def _begins(self) -> bool:
        """Whether the first of its periods begins at the lower bound."""
        if self.dated is None or self.bounds is None or not isinstance(self.bins, Every):
            return False
        low = int(self.bounds[0])
        return len(periods(low - 1, low, self.bins, self.dated)) == 2

    @property
    def dated(self) -> DatedKind | None:
        """Its kind, where its integers are days or moments (`dpdist.spec.groups`)."""
        return self.kind if self.kind == "date" or self.kind == "datetime" else None

    @property
    def is_whole(self) -> bool:
        """Whether its values are a range of integers, days or moments."""
        return self.kind == "integer" or self.dated is not None

    def shown(self, number: Any) -> Any:
        """Return a number of it as people write it: of a date or a datetime as a text."""
        return number if self.dated is None else text_of(int(number), self.dated)

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
        return group_map(self, self.buckets, "bucket")

    @cached_property
    def level_maps(self) -> tuple[NDArray[np.uint32], ...]:
        """For each level the group of each code, as `bucket_map`."""
        return level_maps(self)

    @property
    def bucket_count(self) -> int:
        """Number of buckets."""
        return int(self.bucket_map.max()) + 1


class Schema(Displayed, Frozen):
    """The attributes of a table, in the order of release."""

    attributes: tuple[Attribute, ...] = Field(min_length=1, description="The columns, in the order of release.")
    rules: tuple[Rule, ...] = ()
    """What no record can be, as the public knows. No record that a synthesis releases breaks a rule."""
    about: About | None = None
    """What the table is about: a release says so, too."""

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
    def _heading(self) -> str:
        return f"Schema, attributes: {len(self.attributes)}, rules: {len(self.rules)}"

    def _facts(self) -> list[Fact]:
        return [*(Fact(a.name, a.explain()) for a in self.attributes), *(Fact("Rule", r.text) for r in self.rules)]

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
        module = import_module("dpdist.api.schemas")  # of a layer above this one, which has the tables
        found: SchemaCheck = module.check_schema(self, table, custodian=custodian, layout=layout)
        return found

    def save(self, path: str | Path) -> None:
        """Write the schema as a YAML file. Raises SpecError: it cannot be written."""
        text = write_yaml(self.model_dump(mode="json", exclude_defaults=True), flow=True)
        try:
            Path(path).write_text(text, encoding="utf-8")
        except OSError as error:
            raise SpecError(f"{path} cannot be written: {error.strerror}") from None

    @classmethod
    def from_yaml(cls, path: str | Path) -> Schema:
        """Read a schema file. Raises SpecError: the file is missing, is not YAML or does not describe a schema."""
        tree, names = load_yaml(path), [field.alias or name for name, field in cls.model_fields.items()]
        if not isinstance(tree, dict):
            raise SpecError(f"{path} is not a schema: expected a mapping with `attributes`")
        if not set(tree) & set(names):  # another file, whose content no message repeats
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
