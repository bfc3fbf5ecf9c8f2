"""What a stranger's release may do to whoever reads it: be refused, soon and before it takes memory."""

import hashlib
import json
import os
import random
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import HISTOGRAM
from commands import Command
from published import published

import dpdist
from dpdist import limits
from dpdist.api.released import Release
from dpdist.errors import AccountingError, DataNotFound, GuaranteeRefused, SpecError, VerificationFailed
from dpdist.families.base.plan import EventPlan
from dpdist.families.base.registry import make_plan
from dpdist.inference.answers import tabulate
from dpdist.inference.comparisons import answer
from dpdist.inference.published import Published
from dpdist.inference.records import draw_table
from dpdist.inference.replicates import make_replicates
from dpdist.lifecycle.conformity import refuse
from dpdist.limits import within
from dpdist.privacy import accountant
from dpdist.privacy.events import Composed, DiscreteLaplace, Gaussian
from dpdist.publish import pages
from dpdist.publish.manifest import MANIFEST
from dpdist.publish.pages import refuse_expanding
from dpdist.publish.parts import read_parquet
from dpdist.publish.verify import read_release, verify
from dpdist.spec.attribute import Attribute
from dpdist.spec.schema import Schema
from dpdist.storage.store import Store

Tree = dict[str, Any]
Change = Callable[[Path, Tree], None]
ROWS = 1 << 20


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published(tmp_path_factory.mktemp("plain"))


@pytest.fixture
def place(plain: Path, tmp_path: Path) -> Path:
    """A copy of the release."""
    return Path(shutil.copytree(plain, tmp_path / "release"))


def forge(place: Path, change: Change) -> None:
    """Change files and manifest, in the form that readers expect, and take the signature away."""
    tree = json.loads((place / MANIFEST).read_text())
    change(place, tree)
    written = {name: _sorted(value) for name, value in tree.items()}
    (place / MANIFEST).write_text(json.dumps(written, indent=2, ensure_ascii=False) + "\n")
    (place / "_manifest.sig").unlink(missing_ok=True)


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def fit(place: Path, record: Tree, content: bytes) -> None:
    """Write a file, with a hash and a size that fit it."""
    (place / record["name"]).write_bytes(content)
    record.update(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def record_of(tree: Tree, name: str) -> Tree:
    found: Tree = next(one for one in tree["files"] if one["name"].endswith(name))
    return found


def repeated(chunk: pa.Table, rows: int) -> bytes:
    """A small Parquet file of this many rows."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, chunk.schema, compression="zstd", store_schema=False) as writer:
        for start in range(0, rows, len(chunk)):
            writer.write_table(chunk.slice(0, min(len(chunk), rows - start)))
    content: bytes = sink.getvalue().to_pybytes()
    return content


def events(place: Path, tree: Tree) -> None:
    one = tree["parameters"]["event"]
    many = [{"type": "discrete-laplace/1", "scale": 1e6 + i, "sensitivity": 1, "count": 1} for i in range(1_001)]
    tree["parameters"]["event"] = {"type": "composed/1", "events": [one, *many]}


def count(place: Path, tree: Tree) -> None:
    one = {"type": "discrete-laplace/1", "scale": 1e12, "sensitivity": 1, "count": 10**15}
    tree["parameters"]["event"] = {"type": "composed/1", "events": [tree["parameters"]["event"], one]}


def rows_of_a_part(place: Path, tree: Tree) -> None:
    part = tree["parts"][0]
    chunk = pq.ParquetFile(place / part["name"], read_dictionary=["region", "employed"]).read().slice(0, 1)
    rows = limits.PART_ROWS + 1
    tree["records"] += rows - part["rows"]
    part["rows"] = rows
    fit(place, part, repeated(chunk.take(pa.array(np.zeros(ROWS, np.int32))), rows))


def rows_of_a_table(place: Path, tree: Tree) -> None:
    rows = limits.MODEL_VALUES + 1
    chunk = pa.table({name: np.zeros(ROWS, np.int64) for name in ("table", "cell", "noisy")})
    fit(place, record_of(tree, "tables.columnar"), repeated(chunk, rows))
    about = json.loads((place / record_of(tree, "model.json")["name"]).read_text())
    about["measured"]["tables"] = [about["measured"]["tables"][0] | {"shape": [rows]}]
    fit(place, record_of(tree, "model.json"), json.dumps(about).encode())


def expanding(place: Path, tree: Tree) -> None:
    """A part of some kilobytes, one text of which has more bytes than a reader takes."""
    part = tree["parts"][0]
    table = pq.ParquetFile(place / part["name"]).read()
    values = pa.array(["a" * (pages.GROUP_TEXT_BYTES + 1)])
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(table.num_rows, np.int32)), values)
    sink = pa.BufferOutputStream()
    table = table.set_column(0, table.schema.field("region"), column)
    pq.write_table(table, sink, compression="zstd", write_statistics=False)
    fit(place, part, sink.getvalue().to_pybytes())
    assert part["bytes"] < 100_000


def many_arrays(place: Path, tree: Tree) -> None:
    """A model of some kilobytes, with a hundred million arrays."""
    none = pa.array([[]] * ROWS, pa.list_(pa.int64()))
    kind = pa.array(["int8"] * ROWS)
    chunk = pa.table({"name": kind, "type": kind, "shape": none, "values": none})
    fit(place, record_of(tree, "model.columnar"), repeated(chunk, 1 << 26))


def large_manifest(place: Path, tree: Tree) -> None:
    tree["parameters"]["filler"] = "x" * limits.MANIFEST_BYTES


def many_values(place: Path, tree: Tree) -> None:
    tree["parameters"]["filler"] = [[]] * limits.JSON_VALUES


def many_values_of_a_model(place: Path, tree: Tree) -> None:
    fit(place, record_of(tree, "model.json"), json.dumps([[]] * limits.JSON_VALUES).encode())


def readings(place: Path) -> list[Callable[[], Any]]:
    """What a reader may do."""
    return [
        lambda: verify(place),
        lambda: read_release(place),
        lambda: draw_table(Published.open(place), 20),
        lambda: tabulate(Published.open(place), ["region", "age"]),
        lambda: answer(Published.open(place), "count where age < 20"),
        lambda: answer(Published.open(place), "mean age"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message", "refused"),
    [
        (events, "at most 1,000 privacy events", "v"),
        (count, r"draws of noise are composed, got 1,000,0", "v"),
        (rows_of_a_part, "expected 10,000,000 or less", "vrdtam"),
        (rows_of_a_table, "model are not in their format", "dtam"),
        (expanding, "not a readable Parquet file", "vram"),
        (many_arrays, "model are not in their format", "dtam"),
        (large_manifest, r"has 67,\d+,\d+ bytes, and 67,108,864 are expected at most", "vrdtam"),
        (many_values, "1,000,000 values", "vrdtam"),
        (many_values_of_a_model, "1,000,000 values", "dtam"),
    ],
)
def test_what_is_too_large_is_refused(
    place: Path, change: Change, message: str, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "GROUP_TEXT_BYTES", 1 << 22)  # the memory of the test itself
    forge(place, change)
    start = time.monotonic()
    for letter, read in zip("vrdtam", readings(place), strict=True):
        if letter in refused:
            with pytest.raises(VerificationFailed, match=message):
                read()
    assert time.monotonic() - start < 60


@pytest.mark.parametrize(
    "form",
    [
        {"data_page_version": "2.0"},
        {"use_dictionary": False, "write_page_index": True, "write_page_checksum": True},
        {"compression": "zstd", "data_page_size": 1_000, "row_group_size": 3_000},
        {"compression": "none", "write_statistics": False},
    ],
)
def test_pages_are_found_in_any_form_of_file(form: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes in the headers of pages are those of the footer, but for the headers themselves."""
    rows = 10_000
    texts = pa.array([f"text {i % 700}" for i in range(rows)])
    table = pa.table({"a": np.arange(rows) % 977, "b": texts, "c": [[i] * (i % 3) for i in range(rows)]})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **form)
    content = sink.getvalue().to_pybytes()
    file = pq.ParquetFile(pa.BufferReader(content))
    refuse_expanding(content, file)
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    sizes = [sum(group.column(c).total_uncompressed_size for c in range(3)) for group in groups]
    monkeypatch.setattr(pages, "GROUP_BYTES", max(sizes))
    refuse_expanding(content, file)
    monkeypatch.setattr(pages, "GROUP_BYTES", int(0.7 * max(sizes)))
    with pytest.raises(ValueError, match="too large when it is decompressed"):
        refuse_expanding(content, file)


def test_a_model_has_no_column_of_texts_without_a_dictionary() -> None:
    """Some kilobytes of which are gigabytes in memory."""
    content = repeated(pa.table({"noisy": ["a" * 10_000] * 1_000}), 10_000)
    with pytest.raises(ValueError, match="not of numbers"):
        read_parquet(content)
    assert read_parquet(content, ["noisy"]).nbytes < 1_000_000


@pytest.mark.parametrize(
    "header",
    [
        b"\x19" + b"\x19" * 5_000,  # a list of a list of a list
        b"\x1c" * 5_000,  # a struct in a struct in a struct
        b"\x19\xf7" + b"\xff" * 8 + b"\x7f",  # 2^62 numbers of eight bytes
        b"\x19\xf8" + b"\xff" * 8 + b"\x7f",  # as many texts
        b"\x18" + b"\xff" * 8 + b"\x7f",  # a text of 2^62 bytes
        b"\x19\xf3" + b"\xff" * 3 + b"\x7f" + b"\0" * (1 << 20),  # half a billion bytes, some of which are there
    ],
)
@pytest.mark.timeout(20)
def test_headers_of_pages_end(header: bytes) -> None:
    """A header of some bytes that says it is endless takes neither time nor the stack."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"b": np.arange(1 << 18)}), sink, compression="none", use_dictionary=False)
    content = sink.getvalue().to_pybytes()
    at = pq.ParquetFile(pa.BufferReader(content)).metadata.row_group(0).column(0).data_page_offset
    forged = content[:at] + header + content[at + len(header) :]
    with pytest.raises(ValueError, match="header"):
        refuse_expanding(forged, pq.ParquetFile(pa.BufferReader(forged)))


def test_headers_of_pages_that_are_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    sink, chance = pa.BufferOutputStream(), random.Random(2)
    pq.write_table(pa.table({"b": ["x", "y"] * 50}), sink)
    content = sink.getvalue().to_pybytes()
    file = pq.ParquetFile(pa.BufferReader(content))
    for _ in range(2_000):
        damaged = bytearray(content)
        damaged[chance.randrange(4, 80)] = chance.randrange(256)
        with suppress(ValueError):
            refuse_expanding(bytes(damaged), file)
    monkeypatch.setattr(pages, "PAGES", 1)
    with pytest.raises(ValueError, match="too many pages"):
        refuse_expanding(content, file)


@pytest.mark.parametrize("name", [MANIFEST, "model.json", "tables.columnar", "part-00000.parquet"])
def test_a_pipe_in_place_of_a_file_makes_nobody_wait(place: Path, name: str) -> None:
    (path,) = place.rglob(name)
    path.unlink()
    os.mkfifo(path)
    for read in readings(place):
        with pytest.raises((VerificationFailed, DataNotFound)):
            read()


def test_a_guarantee_that_takes_too_long_is_refused() -> None:
    with pytest.raises(VerificationFailed, match="more than 1 seconds"), within(1, "recomputing"):
        time.sleep(60)
    with within(1, "nothing"):
        pass
    time.sleep(1.1)  # nothing comes later


def test_more_draws_than_can_be_composed_are_refused() -> None:
    """At 10**18 of them epsilon was 0: what rounding adds to each had overflowed."""
    for scale, number in ((1e10, 10**18), (1e8, 2 * limits.EVENTS * 2**40)):
        with pytest.raises(AccountingError, match="draws of noise are composed"):
            accountant.epsilon(DiscreteLaplace(scale=scale, count=number), delta=1e-9)


def test_no_release_is_begun_that_no_reader_opens(tmp_path: Path) -> None:
    spec = HISTOGRAM.spec(tmp_path)
    refuse(make_plan(spec))
    many = Composed(tuple(Gaussian(1e4 + i) for i in range(limits.EVENTS + 1)))
    with pytest.raises(AccountingError, match="at most 1,000 privacy events"):
        refuse(EventPlan(spec=spec, event=many))
    values = [f"v{i}" for i in range(60_000)]
    attributes = tuple(Attribute(name=f"a{k}", kind="categorical", values=values) for k in range(9))
    wide = spec.model_copy(update={"table": Schema(attributes=(*spec.table.attributes, *attributes))})
    with pytest.raises(SpecError, match="no reader would open its manifest"):
        refuse(EventPlan(spec=wide, event=Gaussian(100.0)))


def test_replicates_are_refused_before_memory_is_taken(plain: Path) -> None:
    release = Published.open(plain)
    many = release.manifest.model_copy(update={"records": limits.REPLICATE_VALUES // 80 + 1})
    with pytest.raises(SpecError, match="weights that are made"):
        make_replicates(Published(release.store, many), 80)


# --- damaged files with fitting hashes --------------------------------------------------------------------------------


def _arrays(place: Path, tree: Tree, change: Callable[[dict[str, list[Any]]], None]) -> None:
    record = record_of(tree, "model.columnar")
    table = pq.read_table(place / record["name"])
    columns = table.to_pydict()
    change(columns)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({name: pa.array(columns[name], table[name].type) for name in columns}), sink)
    fit(place, record, sink.getvalue().to_pybytes())


def _value(array: str, place: int, value: int | None) -> Change:
    def change(columns: dict[str, list[Any]]) -> None:
        columns["values"][columns["name"].index(array)][place] = value

    return lambda folder, tree: _arrays(folder, tree, change)


def _type(kind: str) -> Change:
    return lambda folder, tree: _arrays(folder, tree, lambda columns: columns["type"].__setitem__(0, kind))


def _json(*path: Any, value: Any) -> Change:
    def change(place: Path, tree: Tree) -> None:
        about = node = json.loads((place / record_of(tree, "model.json")["name"]).read_text())
        for name in path[:-1]:
            node = node[name]
        node[path[-1]] = value
        fit(place, record_of(tree, "model.json"), json.dumps(about).encode())

    return change


def _parameter(*path: Any, value: Any) -> Change:
    def change(place: Path, tree: Tree) -> None:
        node = tree["parameters"]
        for name in path[:-1]:
            node = node[name]
        node[path[-1]] = value

    return change


def _bytes(name: str, content: bytes) -> Change:
    return lambda place, tree: fit(place, record_of(tree, name), content)


@pytest.mark.parametrize(
    "change",
    [
        _value("fine", 0, 99),
        _value("cardinalities", 0, 0),
        _value("cumulative0", 0, 1 << 50),
        _value("values0", 0, -7),
        _value("attributes", 0, None),
        _type("S999999999"),
        _type("O"),
        _json("measured", "source", value=[99]),
        _json("measured", "tables", 0, "deviation", value=0),
        _json("measured", "tables", 0, "deviation", value=1e-160),
        _json("measured", "tables", 0, "shape", value=[10**30]),
        _json("measured", "tables", 0, "attributes", value=["region"]),
        _json("measured", "maps", 0, value=[]),
        _json("drawing", "key", value="00"),
        _json("drawing", "balance", value=10**9),
        _json("measured", value=None),
        _bytes("model.columnar", b"PAR1"),
        _bytes("tables.columnar", b""),
        _bytes("model.json", b'{"format": 2, "drawing": ' + b"[" * 100_000),
        _parameter("learned", "records", value=10**400),
        _parameter("accuracy", "orders", 0, "sums", value=[1]),
        _parameter("accuracy", "orders", 0, "deviation", value="x"),
        _parameter("accuracy", "orders", 0, value=5.5),
        _parameter("accuracy", "pairs", value=[1]),
        _parameter("accuracy", "released", value=0),
    ],
)
def test_a_damaged_model_is_no_internal_error(place: Path, change: Change) -> None:
    forge(place, change)
    whole = []
    for read in readings(place)[2:]:
        with suppress(VerificationFailed):
            whole.append(read())
    assert len(whole) < 4


def test_damaged_bytes_with_fitting_hashes_are_no_internal_errors(plain: Path, tmp_path: Path) -> None:
    chance = random.Random(1)
    for number in range(25):
        place = Path(shutil.copytree(plain, tmp_path / str(number)))

        def damage(folder: Path, tree: Tree) -> None:
            record = chance.choice([*tree["files"], *tree["parts"]])
            content = bytearray((folder / record["name"]).read_bytes())
            for _ in range(chance.choice([1, 4, 20])):
                content[chance.randrange(len(content))] = chance.randrange(256)
            fit(folder, record, bytes(content[: chance.choice([len(content), len(content) // 2])]))

        forge(place, damage)
        for read in readings(place):
            with suppress(VerificationFailed):
                read()


def test_a_column_that_a_part_lacks(place: Path) -> None:
    """The manifest names another one."""

    def rename(_: Path, tree: Tree) -> None:
        tree["table"]["attributes"][0]["name"] = "other"

    forge(place, rename)
    for read in (lambda: verify(place), lambda: read_release(place)):
        with pytest.raises(VerificationFailed, match="does not have the columns"):
            read()


# --- what reaches a terminal ------------------------------------------------------------------------------------------

ESCAPES = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202e"


def escapes(place: Path, tree: Tree) -> None:
    attributes = tree["table"]["attributes"]
    tree["format"].pop("tilts", None)  # which names its attributes
    attributes[0]["values"][0] = attributes[1]["name"] = tree["name"] = ESCAPES
    tree["table"]["attributes"][4]["values"] = ["yes\nforged", "no"]


def test_no_escape_reaches_the_terminal(place: Path, dpdist: Command) -> None:
    forge(place, escapes)
    for words in (["draw"], ["tabulate", "region"], ["infer", "mean sex", "count where region = 'x'"], ["verify"]):
        ended = dpdist(words[0], str(place), *words[1:])
        for text in (ended.out, ended.err):
            assert not set(text) & {"\x1b", "\x07", "\x9b", "\u202e"}, words
    drawn = dpdist("draw", str(place)).out.splitlines()
    assert "\\x1b[31m" in drawn[0]
    assert len(drawn) == 22


def test_a_release_as_an_object_and_errors_show_no_escape(place: Path) -> None:
    forge(place, escapes)
    release = Release(place)
    for text in (repr(release), str(VerificationFailed(ESCAPES)), str(GuaranteeRefused(f"a {ESCAPES}"))):
        assert "\\x1b" in text
        assert not set(text) & {"\x1b", "\x07", "\x9b", "\u202e"}


def test_commands_print_by_one_function() -> None:
    sources = {path.name: path.read_text() for path in (Path(dpdist.__file__).parent / "cli").glob("*.py")}
    assert sources.pop("shared.py").count("typer.echo(") == 1
    assert not [name for name, text in sources.items() if "typer.echo(" in text or "click.echo(" in text]


@pytest.mark.parametrize("command", ["draw", "release"])
def test_the_details_of_an_internal_error_are_where_one_looks(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reader's are public, so they are on the terminal; others in a file, and older ones go."""
    from dpdist.cli import commands

    def crash(**_: object) -> None:
        raise KeyError(f"a salary of forty{ESCAPES}")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(commands, "app", crash)
    monkeypatch.setattr(commands.signal, "signal", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["dpdist", command, "x"])
    old = tmp_path / "dpdist-error-old.txt"
    old.touch()
    os.utime(old, (0, 0))
    with pytest.raises(SystemExit) as ended:
        commands.main()
    assert ended.value.code == 70
    told, files = capsys.readouterr().err, sorted(tmp_path.glob("dpdist-error-*"))
    assert "\x1b" not in told
    if command == "draw":
        assert "a salary of forty" in told
        assert files == [old]
        return
    (file,) = files
    assert file != old
    assert str(file) in told
    assert "forty" not in told
    assert file.stat().st_mode & 0o777 == 0o600
    assert "a salary of forty" in file.read_text()


def test_a_file_is_not_read_beyond_what_is_expected(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write_bytes("x", b"12345")
    assert store.read_bytes("x", most=5) == b"12345"
    with pytest.raises(VerificationFailed, match="has 5 bytes, and 4 are expected at most"):
        store.read_bytes("x", most=4)
