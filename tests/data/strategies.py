"""Hypothesis strategies that draw tables *and* how they are laid out: files, row groups, types, partitions, batches.

`Case.expected` encodes the drawn values one by one in plain Python: the reference for everything in `dpdist.data`.
"""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from dpdist.data.source import TableSource
from dpdist.spec.attribute import Attribute
from dpdist.spec.data import CsvSpec
from dpdist.spec.groups import Category, Count, Edges
from dpdist.spec.schema import Schema

Value = int | float | str | None

LABELS = ("red", "green", "blue", "black and white", "Zürich", "a,b", "7")
ALIASES = {"RED": "red", "verde": "green"}
SENTINEL = "-99"


@dataclass(frozen=True)
class Case:
    """A table of raw values, its schema and its layout."""

    schema: Schema
    rows: list[tuple[Value, ...]]
    format: str
    file_rows: tuple[int, ...]
    row_group: int
    types: tuple[pa.DataType, ...]
    csv: CsvSpec
    noisy_lines: bool
    line_break: str
    compression: str
    partitions: int
    batch_rows: int

    @property
    def expected(self) -> list[tuple[int, int, tuple[float, ...] | None]]:
        """(file, row, codes or None if dropped) of each record."""
        result: list[tuple[int, int, tuple[float, ...] | None]] = []
        start = 0
        for file, count in enumerate(self.file_rows):
            for row, values in enumerate(self.rows[start : start + count]):
                codes = [code_of(a, v) for a, v in zip(self.schema.attributes, values, strict=True)]
                kept = tuple(code for code in codes if code is not None)
                result.append((file, row, kept if len(kept) == len(codes) else None))
            start += count
        return result

    @property
    def troubles(self) -> list[tuple[int, int]]:
        """(missing, out-of-domain) values of each column."""
        columns = zip(*self.rows, strict=True)
        return [
            (sum(is_missing(v) for v in column), sum(not is_missing(v) and not in_domain(a, v) for v in column))
            for a, column in zip(self.schema.attributes, columns, strict=True)
        ]

    def write(self, folder: Path) -> TableSource:
        """Write the files; return where they are."""
        start = 0
        for number, count in enumerate(self.file_rows):
            rows = self.rows[start : start + count]
            start += count
            if self.format == "parquet":
                self._write_parquet(folder / f"part-{number:03d}.parquet", rows)
            else:
                self._write_csv(folder / f"part-{number:03d}.csv{self.compression}", rows)
        return TableSource((str(folder),), csv=self.csv)

    def _write_parquet(self, path: Path, rows: list[tuple[Value, ...]]) -> None:
        columns = list(zip(*rows, strict=True)) or [()] * len(self.schema.attributes)
        arrays = [physical(column, kind) for column, kind in zip(columns, self.types, strict=True)]
        pq.write_table(pa.table(arrays, names=list(self.schema.names)), path, row_group_size=self.row_group)

    def _write_csv(self, path: Path, rows: list[tuple[Value, ...]]) -> None:
        from fsspec.core import open as fsspec_open

        messy = random.Random(len(rows))
        blanks = " " if self.csv.strip else ""
        separator = self.csv.delimiter + blanks
        lines = [separator.join(self.schema.names)] if self.csv.header else []
        for row in rows:
            if self.noisy_lines and messy.random() < 0.4:
                lines.append(messy.choice(["", f"{self.csv.comment}, a remark"]))
            lines.append(separator.join(self._field(v, quoted=not blanks) for v in row))
        last = self.line_break if messy.random() < 0.5 else ""
        with fsspec_open(str(path), "wb", compression="infer") as file:
            file.write((self.line_break.join(lines) + last).encode())

    def _field(self, value: Value, *, quoted: bool) -> str:
        if value is None and len(self.schema.attributes) == 1:
            return '""'  # else the line would be blank, and a blank line is no record
        text = "" if value is None else str(value)
        return f'"{text}"' if quoted and self.csv.delimiter in text else text


def is_missing(value: Value) -> bool:
    return value is None or str(value) == SENTINEL


def in_domain(attribute: Attribute, value: Value) -> bool:
    if attribute.bounds is not None:
        return attribute.bounds[0] <= float(value or 0) <= attribute.bounds[1]
    return str(value) in (*map(str, attribute.values or ()), *attribute.aliases)


def code_of(attribute: Attribute, value: Value) -> float | None:
    """The code of one value (of a continuous attribute the value), None if its row is dropped."""
    if attribute.is_continuous:
        low, high = map(float, attribute.bounds or ())
        kept = not is_missing(value) and (in_domain(attribute, value) or attribute.out_of_domain == "clip")
        return min(max(float(value or 0), low), high) if kept else None
    declared = attribute.missing_code if attribute.missing_code is not None else attribute.cardinality
    if is_missing(value):
        return attribute.missing_code if isinstance(attribute.missing, Category) else None
    if in_domain(attribute, value):
        if attribute.bounds is not None:
            return sum(1 for edge in attribute.bin_edges if edge <= float(value or 0)) - 1
        names = [str(v) for v in attribute.values or ()]
        return names.index(str(attribute.aliases.get(str(value), value)))
    if attribute.out_of_domain == "drop":
        return None
    if isinstance(attribute.out_of_domain, Category):
        names = [str(v) for v in attribute.values or ()]
        name = attribute.out_of_domain.category
        return names.index(name) if name in names else attribute.missing_code
    assert attribute.bounds is not None
    return 0 if float(value or 0) < attribute.bounds[0] else declared - 1


def physical(column: tuple[Value, ...], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return physical(column, kind.value_type).dictionary_encode()
    if pa.types.is_string(kind):
        return pa.array([None if v is None else str(v) for v in column], kind)
    return pa.array([None if v is None else float(v) if pa.types.is_floating(kind) else v for v in column], kind)


def attributes(name: str, *, continuous: bool = False) -> st.SearchStrategy[Attribute]:
    """Attributes of every kind whose policies admit everything (none refuses); some numbers without bins if allowed."""
    categories = [Category(category="none")]

    def policies(draw: st.DrawFn, absent: list[Any], *others: Any) -> dict[str, Any]:
        missing = draw(st.sampled_from(["drop", *absent]))
        outside = ["drop", *others, *([missing] if others and missing != "drop" else [])]
        policy = draw(st.sampled_from(outside))
        return {"name": name, "missing": missing, "missing_values": (SENTINEL,), "out_of_domain": policy}

    @st.composite
    def integers(draw: st.DrawFn) -> Attribute:
        low = draw(st.integers(-20, 300))
        high = low + draw(st.integers(0, 400))
        edges = st.sets(st.integers(low, high), max_size=4).map(lambda s: Edges(edges=tuple(sorted(s | {low}))))
        bins = draw(st.one_of(st.none(), edges, st.integers(1, high - low + 1).map(lambda n: Count(count=n))))
        return Attribute(kind="integer", bounds=(low, high), bins=bins, **policies(draw, categories, "clip"))

    @st.composite
    def categorical(draw: st.DrawFn) -> Attribute:
        numeric = st.lists(st.integers(-5, 40), min_size=1, unique=True)
        values = tuple(draw(st.one_of(numeric, st.sampled_from([LABELS, LABELS[:2], LABELS[2:]]))))
        aliases = ALIASES if set(LABELS[:2]) <= set(values) else {}
        found = policies(draw, categories)
        found["out_of_domain"] = draw(st.sampled_from(["drop", Category(category=str(values[-1]))]))
        return Attribute(kind="categorical", values=values, aliases=aliases, **found)

    @st.composite
    def numbers(draw: st.DrawFn) -> Attribute:
        low, width = draw(st.integers(-8, 8)) / 4, draw(st.integers(1, 40)) / 4
        inner = st.sets(st.integers(1, 39).map(lambda n: n / 4).filter(lambda w: w < width), max_size=4)
        edges = inner.map(lambda s: Edges(edges=(low, *(low + w for w in sorted(s)))))
        counts = st.integers(1, 9).map(lambda n: Count(count=n))
        bins = draw(st.one_of(edges, counts, *([st.none()] if continuous else [])))
        found = policies(draw, [] if bins is None else categories, "clip")
        return Attribute(kind="number", bounds=(low, low + width), bins=bins, **found)

    return st.one_of(integers(), categorical(), numbers())


def values_of(attribute: Attribute) -> st.SearchStrategy[Value]:
    absent = st.sampled_from([None, int(SENTINEL)])
    if attribute.kind == "number":
        low, high = map(float, attribute.bounds or ())
        quarters = st.integers(int(low * 4) - 9, int(high * 4) + 9).map(lambda n: n / 4)
        return st.one_of(quarters, st.floats(low, high), st.sampled_from([low, high, np.inf, -np.inf]), absent)
    if attribute.bounds is not None:
        low, high = attribute.bounds
        return st.one_of(st.integers(low, high), st.integers(low - 9, high + 9), absent)
    if isinstance((attribute.values or ("",))[0], int):
        return st.one_of(st.sampled_from(attribute.values or ()), st.integers(-9, 45), absent)
    return st.one_of(st.sampled_from((*(attribute.values or ()), *attribute.aliases, "mauve")), st.none())


def types_of(attribute: Attribute) -> st.SearchStrategy[pa.DataType]:
    texts = [pa.string(), pa.dictionary(pa.int8(), pa.string())]
    if attribute.kind == "number":
        return st.sampled_from([pa.float64(), pa.dictionary(pa.int16(), pa.float64()), *texts])
    if attribute.bounds is None and not isinstance((attribute.values or ("",))[0], int):
        return st.sampled_from(texts)
    return st.sampled_from(
        [pa.int16(), pa.int32(), pa.int64(), pa.float64(), pa.dictionary(pa.int16(), pa.int64()), *texts]
    )


@st.composite
def cases(draw: st.DrawFn, *, max_rows: int = 60, continuous: bool = False) -> Case:
    """Tables with every kind of trouble that the drawn policies admit, in any layout."""
    count = draw(st.integers(1, 4))
    schema = Schema(attributes=tuple(draw(attributes(f"c{i}", continuous=continuous)) for i in range(count)))
    rows = draw(st.lists(st.tuples(*map(values_of, schema.attributes)), min_size=1, max_size=max_rows))
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    file_rows = tuple(b - a for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True))
    header = draw(st.booleans())
    delimiter = draw(st.sampled_from([",", ";", "\t"]))
    has_commas = any("a,b" in (a.values or ()) for a in schema.attributes)
    strip = draw(st.booleans()) and not (has_commas and delimiter == ",")
    csv = CsvSpec(
        header=header, columns=None if header else schema.names, delimiter=delimiter, strip=strip, comment="#"
    )
    return Case(
        schema=schema,
        rows=rows,
        format=draw(st.sampled_from(["parquet", "csv"])),
        file_rows=file_rows,
        row_group=draw(st.integers(1, 30)),
        types=tuple(draw(types_of(a)) for a in schema.attributes),
        csv=csv,
        noisy_lines=draw(st.booleans()),
        line_break=draw(st.sampled_from(["\n", "\r\n"])),
        compression=draw(st.sampled_from(["", "", "", ".gz", ".bz2"])),
        partitions=draw(st.sampled_from([1, 2, 3, 7, 16, 100])),
        batch_rows=draw(st.sampled_from([1, 2, 5, 1000])),
    )


def contingency(codes, attributes, sizes, *, maps=None):
    """Joint counts of any attributes, each optionally mapped onto its buckets first: the plain way."""
    columns = [
        codes[i] if bucket_map is None else bucket_map.take(codes[i])
        for i, bucket_map in zip(attributes, maps or [None] * len(attributes), strict=True)
    ]
    counts = np.zeros(tuple(sizes), np.int64)
    np.add.at(counts, tuple(column.astype(np.int64) for column in columns), 1)
    return counts
