"""One column of a table, as the public knows it: its domain, bins, labels and policies."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Annotated, Any, Literal

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
from dpdist.spec.domains import check_bounds, check_heaps, check_texts, check_values
from dpdist.spec.groups import (
    DAY,
    MAX_CARDINALITY,
    Category,
    Count,
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
from dpdist.spec.strict import Frozen, Value

End = Annotated[Number, WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "number"}, {"type": "string"}]})]
"""A number; of a date or a datetime written as a text."""


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
                check_heaps(self)
                check_bounds(self)
            else:
                check_values(self)
            check_texts(self)
            if not self.is_continuous:
                if self.cardinality > MAX_CARDINALITY:
                    raise ValueError(f"the domain exceeds {MAX_CARDINALITY} values; declare `bins`")
                _ = self.bucket_map, self.level_maps  # which are refused where they do not fit the values
        except ValueError as error:
            raise ValueError(f"attribute {self.name!r}: {error}") from None
        return self

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
    def declared(self) -> int:
        """Number of values, or of bins. Raises SpecError: the attribute is continuous."""
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
    def begins(self) -> bool:
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
        return self.declared if isinstance(self.missing, Category) else None

    @property
    def cardinality(self) -> int:
        """Number of codes, that of the missing category included. Raises SpecError: the attribute is continuous."""
        return self.declared + isinstance(self.missing, Category)

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


def _one_type(numbers: tuple[Any, ...], kind: str | None, name: str | None) -> tuple[Any, ...]:
    """Floats for a number, else integers. Raises ValueError: one is not an integer."""
    if kind == "number":
        return tuple(map(float, numbers))
    if any(int(number) != number for number in numbers):
        raise ValueError(f"attribute {name!r}: bounds and edges of integers are integers")
    return tuple(map(int, numbers))
