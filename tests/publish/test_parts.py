"""From codes to Parquet files: values, bytes, records of parts, Arrow arrays."""

import hashlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdist.errors import OutputUnwritable
from dpdist.privacy.noise import Noise
from dpdist.publish import parts
from dpdist.publish.columns import columns, lists, numbers, texts
from dpdist.publish.part_format import PartFormat, PartRecord
from dpdist.publish.parts import arrow_schema, decode, parquet_bytes, part_name, write_part
from dpdist.spec.attribute import Attribute
from dpdist.spec.groups import Category, Count, Edges
from dpdist.spec.schema import Schema
from dpdist.storage.store import Store

NOISE = Noise(bytes(32))

short_texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6)
integers = st.integers(-(2**40), 2**40)
missing = st.sampled_from(["refuse", "drop"]) | st.builds(Category, category=short_texts.map(lambda t: f"missing {t}"))


@st.composite
def attributes(draw: st.DrawFn, name: str) -> Attribute:
    """Any attribute whose texts all differ, so that what is written can be turned back."""
    policy = draw(missing)
    if draw(st.booleans()):
        pool = short_texts if draw(st.booleans()) else integers
        values = tuple(draw(st.lists(pool, min_size=1, max_size=9, unique_by=str)))
        kind = draw(st.sampled_from(["categorical", "ordinal"]))
        labels = draw(st.none() | labels_of(len(values)))
        return Attribute(name=name, kind=kind, values=values, labels=labels, missing=policy)
    if draw(st.booleans()):
        low, width = draw(st.integers(-(2**20), 2**20)) / 8, draw(st.integers(1, 40)) / 4
        if draw(st.booleans()):
            return Attribute(name=name, kind="number", bounds=(low, low + width))
        count = draw(st.integers(1, 40))
        labels = draw(st.none() | labels_of(count))
        parted = Count(count=count)
        return Attribute(
            name=name, kind="number", bounds=(low, low + width), bins=parted, labels=labels, missing=policy
        )
    low = draw(integers)
    size = draw(st.integers(1, 40))
    bins: Count | Edges | None = None
    if draw(st.booleans()):
        edges = draw(st.lists(st.integers(low, low + size - 1), max_size=5, unique=True).map(sorted))
        bins = Edges(edges=(low, *(e for e in edges if e > low)))
    elif draw(st.booleans()):
        bins = Count(count=draw(st.integers(1, size)))
    count = len(bins.edges) if isinstance(bins, Edges) else bins.count if bins else size
    labels = draw(st.none() | labels_of(count))
    bounds = (low, low + size - 1)
    return Attribute(name=name, kind="integer", bounds=bounds, bins=bins, labels=labels, missing=policy)


def labels_of(count: int) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(short_texts, min_size=count, max_size=count, unique=True).map(tuple)


@st.composite
def tables(draw: st.DrawFn) -> tuple[Schema, list[np.ndarray], PartFormat]:
    names = draw(st.lists(short_texts, min_size=1, max_size=4, unique=True))
    schema = Schema(attributes=tuple(draw(attributes(name)) for name in names))
    rows = draw(st.integers(0, 30))
    codes = [
        np.array(
            draw(
                st.lists(
                    st.floats(*map(float, a.bounds or ())) if a.is_continuous else st.integers(0, a.cardinality - 1),
                    min_size=rows,
                    max_size=rows,
                )
            ),
            a.dtype,
        )
        for a in schema.attributes
    ]
    values = draw(st.sampled_from(["values", "labels", "codes"]))
    return schema, codes, PartFormat(values=values, bins=draw(st.sampled_from(["uniform", "label"])))


def code_of(attribute: Attribute, form: PartFormat, value: Any) -> int:
    """The code a written value came from, found without the code under test."""
    if attribute.is_continuous:
        return value
    if form.values == "codes":
        return int(value)
    if value is None or (isinstance(attribute.missing, Category) and value == attribute.missing.category):
        assert attribute.missing_code is not None
        return attribute.missing_code
    labelled = form.values == "labels" or (attribute.is_binned and form.bins == "label")
    if attribute.labels is not None and labelled:
        return attribute.labels.index(value)
    if attribute.values is not None:
        return attribute.values.index(value)
    if isinstance(value, str):
        value = (float if attribute.kind == "number" else int)(value.split("..")[0])
    return int(np.searchsorted(attribute.bin_edges, value, side="right")) - 1


class TestDecode:
    @given(tables())
    @settings(max_examples=150, deadline=None)
    def test_every_kind_of_attribute_comes_back_from_parquet(
        self, table: tuple[Schema, list[np.ndarray], PartFormat]
    ) -> None:
        schema, codes, form = table
        decoded = decode(schema, codes, form=form, noise=NOISE)
        assert decoded.schema.equals(arrow_schema(schema, form))
        decoded.validate(full=True)
        read = pq.read_table(pa.BufferReader(parquet_bytes(decoded)))
        for index, attribute in enumerate(schema.attributes):
            written = read.column(index).to_pylist()
            assert written == decoded.column(index).to_pylist()
            assert [code_of(attribute, form, value) for value in written] == codes[index].tolist()

    @given(tables())
    @settings(max_examples=100, deadline=None)
    def test_what_is_written_is_in_the_domain_and_what_is_not_is_refused(
        self, table: tuple[Schema, list[np.ndarray], PartFormat]
    ) -> None:
        schema, codes, form = table
        decoded = decode(schema, codes, form=form, noise=NOISE)
        for column, attribute, array in zip(columns(schema, form), schema.attributes, decoded.columns, strict=True):
            assert column.admits(array)
            if column.texts is not None:
                foreign: list[Any] = [max(column.texts) + "x"]
            elif column.edges is not None:
                low, high = map(float, attribute.bounds or ())
                foreign = [np.nextafter(low, -np.inf), np.nextafter(high, np.inf), np.inf, np.nan, None]
            elif column.integers is not None:
                foreign = [attribute.bounds[1] + 1 if attribute.bounds else 2**41, None]
            else:
                foreign = [attribute.cardinality] if attribute.cardinality < 255 else []
            for value in foreign:
                wrong = pa.array([value], column.field.type.value_type if column.texts else column.field.type)
                wrong = wrong.dictionary_encode() if column.texts else wrong
                assert column.admits(wrong) == (value is None and column.field.nullable)

    def test_missing_is_null_among_integers_and_text_among_texts(self) -> None:
        policy = Category(category="unknown")
        schema = Schema(
            attributes=(
                Attribute(name="a", kind="integer", bounds=(1, 2), missing=policy),
                Attribute(name="b", kind="integer", bounds=(1, 9), bins=Edges(edges=(1, 5, 9)), missing=policy),
                Attribute(name="c", kind="categorical", values=(7, 8), labels=("seven", "eight"), missing=policy),
                Attribute(name="d", kind="categorical", values=("x", "y"), missing=policy),
            )
        )
        codes = [np.array([c], np.uint8) for c in (2, 3, 2, 2)]
        row = decode(schema, codes, form=PartFormat(), noise=NOISE).to_pylist()[0]
        assert row == {"a": None, "b": None, "c": None, "d": "unknown"}
        row = decode(schema, codes, form=PartFormat(values="labels", bins="label")).to_pylist()[0]
        assert row == {"a": None, "b": "unknown", "c": "unknown", "d": "unknown"}
        row = decode(schema, codes, form=PartFormat(values="codes")).to_pylist()[0]
        assert row == {"a": 2, "b": 3, "c": 2, "d": 2}
        bins = decode(schema, [np.resize(c, 3) for c in ([0], [0, 1, 2], [0], [0])], form=PartFormat(bins="label"))
        assert bins["b"].to_pylist() == ["1..4", "5..8", "9"]

    def test_values_that_share_a_label_stay_apart_from_the_others(self) -> None:
        attribute = Attribute(name="a", kind="categorical", values=(1, 2, 3, 4), labels=("x", "y", "x", "z"))
        schema = Schema(attributes=(attribute,))
        table = decode(schema, [np.arange(4, dtype=np.uint8)], form=PartFormat(values="labels"))
        read = pq.read_table(pa.BufferReader(parquet_bytes(table)))
        assert read["a"].to_pylist() == ["x", "y", "x", "z"]

    def test_binned_integers_are_uniform_in_their_bin(self) -> None:
        attribute = Attribute(name="a", kind="integer", bounds=(-3, 20), bins=Edges(edges=(-3, 4, 5)))
        schema = Schema(attributes=(attribute,))
        codes = [np.resize(np.arange(3, dtype=np.uint8), 300_000)]
        drawn = decode(schema, codes, form=PartFormat(), noise=NOISE)["a"].to_numpy()
        for low, high in ((-3, 3), (4, 4), (5, 20)):
            width = high - low + 1
            counts = np.bincount(drawn[(drawn >= low) & (drawn <= high)] - low, minlength=width)
            assert counts.sum() == 100_000
            deviation = np.sqrt(100_000 / width * (1 - 1 / width))
            assert np.all(np.abs(counts - 100_000 / width) <= 7 * deviation)

    def test_binned_numbers_are_uniform_in_their_bin(self) -> None:
        attribute = Attribute(name="a", kind="number", bounds=(-1.5, 20), bins=Edges(edges=(-1.5, 0.1, 0.3)))
        codes = np.resize(np.arange(3, dtype=np.uint8), 300_000)
        drawn = decode(Schema(attributes=(attribute,)), [codes], form=PartFormat(), noise=NOISE)["a"].to_numpy()
        for bin_, (low, high) in enumerate(((-1.5, 0.1), (0.1, 0.3), (0.3, 20))):
            inside = drawn[codes == bin_]
            assert low <= inside.min()
            assert inside.max() < high
            counts = np.histogram(inside, 50, (low, high))[0]
            assert np.all(np.abs(counts - 2000) <= 7 * np.sqrt(2000))

    def test_a_draw_that_rounds_up_stays_in_its_bin(self) -> None:
        edges = (1.0, float(np.nextafter(1, 2)), float(np.nextafter(np.nextafter(1, 2), 2)))
        attribute = Attribute(name="a", kind="number", bounds=(1, 2), bins=Edges(edges=edges))
        codes = np.resize(np.arange(2, dtype=np.uint8), 1000)
        drawn = decode(Schema(attributes=(attribute,)), [codes], form=PartFormat(), noise=NOISE)["a"].to_numpy()
        assert np.array_equal(drawn, np.array(edges)[codes])

    def test_draws_belong_to_the_record_whatever_the_pieces(self, schema: Schema, codes: list[np.ndarray]) -> None:
        form = PartFormat()
        whole = decode(schema, codes, form=form, noise=NOISE, start=7)
        for size in (1, 64, 333):
            pieces = [
                decode(schema, [c[at : at + size] for c in codes], form=form, noise=NOISE, start=7 + at)
                for at in range(0, len(codes[0]), size)
            ]
            assert pa.concat_tables(pieces).to_pylist() == whole.to_pylist()
        assert decode(schema, codes, form=form, noise=NOISE, start=8)["wage"] != whole["wage"]
        assert decode(schema, codes, form=form, noise=Noise(b"x" * 32), start=7)["wage"] != whole["wage"]

    def test_numbers_outside_their_bounds_are_refused(self) -> None:
        schema = Schema(attributes=(Attribute(name="a", kind="number", bounds=(0, 1)),))
        assert decode(schema, [np.array([0, 0.5, 1])], form=PartFormat(values="codes"))["a"].to_pylist() == [0, 0.5, 1]
        for wrong in (-0.1, 1.5, np.nan, np.inf):
            with pytest.raises(ValueError, match="'a': a number is outside the domain"):
                decode(schema, [np.array([0.5, wrong])], form=PartFormat())

    def test_wrong_codes_and_missing_noise_are_refused(self, schema: Schema, codes: list[np.ndarray]) -> None:
        form = PartFormat()
        with pytest.raises(ValueError, match="'wage': bins need noise"):
            decode(schema, codes, form=form)
        decode(schema, codes, form=PartFormat(bins="label"))
        for wrong in (codes[1:], [*codes[:-1], codes[-1][1:]]):
            with pytest.raises(ValueError, match="expected 5 arrays of codes of the same length"):
                decode(schema, wrong, form=form, noise=NOISE)
        for index, name in enumerate(schema.names):
            wrong = [c.copy() for c in codes]
            wrong[index][3] = schema.cardinalities[index]
            with pytest.raises(ValueError, match=f"'{name}': a code is outside the domain"):
                decode(schema, wrong, form=form, noise=NOISE)


class TestParquet:
    def test_bytes_do_not_depend_on_chunks_or_on_the_run(self, schema: Schema, codes: list[np.ndarray]) -> None:
        whole = decode(schema, codes, form=PartFormat(), noise=NOISE)
        chunks = pa.concat_tables([whole.slice(0, 3), whole.slice(3, 200), whole.slice(203)])
        content = parquet_bytes(whole)
        assert parquet_bytes(chunks) == content
        assert parquet_bytes(chunks.replace_schema_metadata({"time": str(time.time())})) == content
        program = (
            "import sys, hashlib, pyarrow.parquet as pq, pyarrow as pa\n"
            "from dpdist.publish.parts import parquet_bytes\n"
            "t = pa.ipc.open_file(pa.BufferReader(sys.stdin.buffer.read())).read_all()\n"
            "print(hashlib.sha256(parquet_bytes(t)).hexdigest())"
        )
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, whole.schema) as writer:
            writer.write_table(whole)
        out = subprocess.run([sys.executable, "-c", program], input=sink.getvalue(), capture_output=True, check=True)
        assert out.stdout.decode().strip() == hashlib.sha256(content).hexdigest()

    def test_a_part_tells_nothing_but_its_schema(self, schema: Schema, codes: list[np.ndarray]) -> None:
        table = decode(schema, codes, form=PartFormat(), noise=NOISE)
        file = pq.ParquetFile(pa.BufferReader(parquet_bytes(table)))
        assert set(file.metadata.metadata) == {b"ARROW:schema"}
        assert file.schema_arrow.equals(table.schema, check_metadata=True)
        group = file.metadata.row_group(0)
        assert {group.column(i).compression for i in range(5)} == {"ZSTD"}

    def test_a_record_says_what_was_written(self, tmp_path: Path, schema: Schema, codes: list[np.ndarray]) -> None:
        name = part_name("0123456789abcdef", 12)
        assert name == "data/01234567/part-00012.parquet"
        table = decode(schema, codes, form=PartFormat(), noise=NOISE)
        record = write_part(Store(tmp_path), name, table)
        content = (tmp_path / name).read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        assert record == PartRecord(name=name, rows=table.num_rows, bytes=len(content), sha256=digest)
        assert write_part(Store(tmp_path), name, table) == record
        assert (tmp_path / name).read_bytes() == content

    def test_a_part_that_no_reader_would_hold_is_refused(
        self, tmp_path: Path, schema: Schema, codes: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(parts, "PART_BYTES", 1000)
        table = decode(schema, codes, form=PartFormat(), noise=NOISE)
        with pytest.raises(OutputUnwritable, match=r"lower output\.rows_per_part"):
            write_part(Store(tmp_path), part_name("a", 0), table)
        assert not [*tmp_path.iterdir()]

    def test_a_million_records_take_less_than_two_seconds_of_processor_time(self, tmp_path: Path) -> None:
        wide = [
            Attribute(name=f"c{i}", kind="categorical", values=tuple(f"value {j}" for j in range(3 + 5 * i)))
            for i in range(8)
        ]
        binned = [Attribute(name=f"b{i}", kind="integer", bounds=(0, 99_999), bins=Count(count=50)) for i in range(3)]
        schema = Schema(attributes=(*wide, *binned))
        rng = np.random.default_rng(0)
        codes = [rng.integers(0, a.cardinality, 1_000_000).astype(a.dtype) for a in schema.attributes]
        store = Store(tmp_path)
        start = time.process_time()
        for at in range(0, 1_000_000, 250_000):
            piece = [c[at : at + 250_000] for c in codes]
            table = decode(schema, piece, form=PartFormat(), noise=NOISE, start=at)
            write_part(store, part_name("a", at // 250_000), table)
        assert time.process_time() - start < 2


def test_reading_and_writing_import_no_cluster() -> None:
    """Nor pandas, which `pyarrow.array` imports."""
    program = (
        "import sys, numpy as np, dpdist.publish.verify, pyarrow as pa\n"
        "from dpdist.publish.columns import lists, numbers, texts\n"
        "from dpdist.publish.parts import parquet_bytes\n"
        "parquet_bytes(pa.table({'a': texts(['x']), 'b': numbers(np.arange(1)), 'c': lists([np.arange(2)])}))\n"
        "print([m for m in ('dask', 'distributed', 'pandas', 's3fs', 'botocore', 'prefect') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert out.stdout.strip() == "[]"


NO_THREAD = """
import os, sys
import pyarrow as pa
from dpdist.publish.parts import parquet_bytes, read_parquet
content = parquet_bytes(pa.table({"text": pa.array(["a", "b"] * 500).dictionary_encode(), "number": range(1000)}))
before = len(os.listdir("/proc/self/task"))
assert read_parquet(content, ["text"]).num_rows == 1000
sys.exit(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads by /proc")
def test_reading_from_memory_starts_no_thread_that_outlives_python() -> None:
    """A thread of Arrow that frees the bytes while Python exits aborts the process, once in five runs under load."""
    assert subprocess.run([sys.executable, "-c", NO_THREAD], check=False).returncode == 0


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.int64, np.uint32, np.float64])
@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 1000])
def test_numbers(dtype: type, rows: int) -> None:
    rng = np.random.default_rng(rows)
    values = rng.integers(0, 200, rows).astype(dtype)
    missing = rng.random(rows) < 0.3
    assert numbers(values).equals(pa.array(values))
    made = numbers(values, missing=missing)
    made.validate(full=True)
    assert made.equals(pa.array(values, mask=missing))
    assert numbers(values[::2]).equals(pa.array(values[::2]))


@pytest.mark.parametrize("values", [[], [""], ["a", "", "bß€", "\x00"], ["x" * 1000] * 3])
def test_texts(values: list[str]) -> None:
    made = texts(values)
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.string()))


def test_lists() -> None:
    for values in ([], [np.arange(3)], [np.arange(0), np.array([5], np.int32), np.arange(4)]):
        made = lists(values)
        made.validate(full=True)
        assert made.equals(pa.array([value.tolist() for value in values], pa.list_(pa.int64())))
