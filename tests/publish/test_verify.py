import hashlib
import json
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from manifests import manifest_of

from dpdist.errors import DataNotFound, VerificationFailed
from dpdist.privacy.noise import Noise
from dpdist.publish.manifest import MANIFEST, Manifest, publish
from dpdist.publish.part_format import PartFormat, PartRecord
from dpdist.publish.parts import decode, parquet_bytes, part_name, write_part
from dpdist.publish.verify import open_release, part_batches, read_manifest, read_release, verify
from dpdist.spec.attribute import Attribute
from dpdist.spec.schema import Schema
from dpdist.storage.store import Store

Release = Callable[..., Manifest]


def replaced(store: Store, manifest: Manifest, table: pa.Table, **honest: Any) -> Manifest:
    """Put a table in the place of the last part, and fit the manifest to it except for what is given."""
    last = manifest.parts[-1]
    content = parquet_bytes(table)
    store.write_bytes(last.name, content)
    true = {"rows": table.num_rows, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    part = PartRecord(**{"name": last.name, **true, **honest})
    records = manifest.records - last.rows + part.rows
    forged = manifest.model_copy(update={"parts": (*manifest.parts[:-1], part), "records": records})
    store.write_bytes(MANIFEST, forged.to_bytes())
    return forged


def last_part(store: Store, manifest: Manifest) -> pa.Table:
    return read_release(store.uri).slice(manifest.records - manifest.parts[-1].rows)


def edited(store: Store, **changes: Any) -> None:
    fields = json.loads(store.read_bytes(MANIFEST)) | changes
    store.write_bytes(MANIFEST, (json.dumps(fields, indent=2, ensure_ascii=False) + "\n").encode())


def batches_of(uri: str, rows: int = 1 << 16) -> Iterator[pa.RecordBatch]:
    """The records as tasks read them, part by part."""
    store, manifest = open_release(uri)
    for part in range(len(manifest.parts)):
        yield from part_batches(store, manifest, part, batch_rows=rows)


def flip(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


class TestReport:
    def test_a_whole_release_passes(self, place: str, release: Release) -> None:
        manifest = release(Store(place))
        report = verify(place)
        assert (report.uri, report.kind, report.name) == (place, "plausible-deniability", "one")
        assert (report.records, report.parts) == (500, 3)
        assert report.bytes == sum(part.bytes for part in manifest.parts)
        assert report.guarantee.startswith("(1.25, 1e-9)-differential privacy for the whole release")
        assert (report.signature, report.private, report.unlisted) == ("none", True, ())
        assert json.loads(json.dumps(report.to_json()))["records"] == 500

    def test_a_test_key_and_foreign_files_are_reported(self, place: str, release: Release) -> None:
        store = Store(place)
        release(store, fixed_key=True)
        store.write_bytes("data/other/part-00000.parquet", b"left by an interrupted attempt")
        report = verify(place)
        assert not report.private
        assert report.unlisted == ("data/other/part-00000.parquet",)

    def test_no_release(self, place: str, write_parts: Release) -> None:
        for call in (verify, read_release, read_manifest, open_release):
            with pytest.raises(DataNotFound, match=r"no finished release at .*manifest\.json: it does not exist"):
                call(place)
        write_parts(Store(place))
        with pytest.raises(DataNotFound, match="no finished release"):
            verify(place)


class TestRead:
    def test_records_come_in_order_through_the_manifest_only(
        self, place: str, release: Release, schema: Schema, codes: list[np.ndarray]
    ) -> None:
        store = Store(place)
        release(store)
        store.write_bytes("data/zzz/part-00000.parquet", b"not of this release")
        expected = decode(schema, codes, form=PartFormat(), noise=Noise(bytes(range(32))))
        table = read_release(place)
        assert table.schema.equals(expected.schema)
        assert table.to_pylist() == expected.to_pylist()
        batches = [*batches_of(place, 64)]
        assert max(batch.num_rows for batch in batches) == 64
        assert pa.Table.from_batches(batches).to_pylist() == expected.to_pylist()

    @pytest.mark.parametrize("values", ["values", "labels", "codes"])
    @pytest.mark.parametrize("bins", ["uniform", "label"])
    def test_every_format_is_verified_and_read(
        self, tmp_path: Path, schema: Schema, codes: list[np.ndarray], fields: dict[str, Any], values: Any, bins: Any
    ) -> None:
        form = PartFormat(values=values, bins=bins)
        store = Store(tmp_path / "one")
        table = decode(schema, codes, form=form, noise=Noise(bytes(32)))
        parts = [write_part(store, part_name("a", 0), table)]
        publish(store, manifest_of(fields | {"form": form, "parts": parts}))
        assert verify(store.uri).records == len(codes[0])
        assert read_release(store.uri).to_pylist() == table.to_pylist()

    def test_a_changed_part_is_not_read(self, place: str, release: Release) -> None:
        store = Store(place)
        name = release(store).parts[0].name
        store.write_bytes(name, flip(store.read_bytes(name), 100))
        for call in (read_release, lambda uri: [*batches_of(uri)]):
            with pytest.raises(VerificationFailed, match=f"{name} was changed"):
                call(place)

    def test_memory_is_bounded_by_a_part(self, tmp_path: Path, fields: dict[str, Any]) -> None:
        attribute = Attribute(name="a", kind="integer", bounds=(0, 65_000))
        schema = Schema(attributes=(attribute,))
        store = Store(tmp_path / "large")
        rng = np.random.default_rng(0)
        parts = [
            write_part(
                store,
                part_name("a", index),
                decode(schema, [rng.integers(0, 65_000, 200_000).astype(np.uint16)], form=PartFormat()),
            )
            for index in range(12)
        ]
        publish(store, manifest_of(fields | {"table": schema, "parts": parts}))
        sizes = [part.bytes for part in parts]
        arrow = pa.default_memory_pool()
        before = arrow.bytes_allocated()
        most = 0
        batches = batches_of(store.uri)
        next(batches)
        tracemalloc.start()
        try:
            for _ in batches:
                most = max(most, arrow.bytes_allocated() - before)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 3 * max(sizes) < sum(sizes) / 3
        assert most < 3 * 200_000 * 8


# What was done to a release, and what verification must say.
DAMAGES: dict[str, tuple[Callable[[Store, Manifest], object], str]] = {}


def damage(message: str) -> Callable[[Callable[[Store, Manifest], object]], Callable[[Store, Manifest], object]]:
    def register(make: Callable[[Store, Manifest], object]) -> Callable[[Store, Manifest], object]:
        DAMAGES[make.__name__] = (make, message)
        return make

    return register


@damage(r"part-00001\.parquet was changed, its SHA-256")
def flipped_bit(store: Store, manifest: Manifest) -> None:
    name = manifest.parts[1].name
    content = store.read_bytes(name)
    store.write_bytes(name, flip(content, len(content) // 2))


@damage(r"part-00001\.parquet has \d+ bytes, expected \d+: copy the release again")
def truncated_part(store: Store, manifest: Manifest) -> None:
    store.write_bytes(manifest.parts[1].name, store.read_bytes(manifest.parts[1].name)[:-9])


@damage(r"part-00002\.parquet is missing: copy the release again")
def missing_part(store: Store, manifest: Manifest) -> None:
    store.delete(manifest.parts[2].name)


@damage(r"part-0000[01]\.parquet (has|was changed)")
def swapped_parts(store: Store, manifest: Manifest) -> None:
    first, second = (store.read_bytes(part.name) for part in manifest.parts[:2])
    store.write_bytes(manifest.parts[0].name, second)
    store.write_bytes(manifest.parts[1].name, first)


@damage(r"part-00002\.parquet (has|was changed)")
def added_row(store: Store, manifest: Manifest) -> None:
    table = last_part(store, manifest)
    store.write_bytes(manifest.parts[2].name, parquet_bytes(pa.concat_tables([table, table.slice(0, 1)])))


@damage(r"part-00002\.parquet does not have the 167 rows of the manifest")
def added_row_with_its_hash(store: Store, manifest: Manifest) -> None:
    table = last_part(store, manifest)
    replaced(store, manifest, pa.concat_tables([table, table.slice(0, 1)]), rows=manifest.parts[2].rows)


@damage("does not have the columns of the manifest's schema")
def missing_column(store: Store, manifest: Manifest) -> None:
    replaced(store, manifest, last_part(store, manifest).drop_columns(["sex"]))


@damage("does not have the columns of the manifest's schema")
def added_column(store: Store, manifest: Manifest) -> None:
    table = last_part(store, manifest)
    replaced(store, manifest, table.append_column("seed", table["age"]))


@damage("does not have the columns of the manifest's schema")
def other_type(store: Store, manifest: Manifest) -> None:
    table = last_part(store, manifest)
    replaced(store, manifest, table.set_column(2, "sex", table["sex"].cast(pa.float64())))


@damage("does not have the columns of the manifest's schema")
def other_order(store: Store, manifest: Manifest) -> None:
    table = last_part(store, manifest)
    replaced(store, manifest, table.select(table.column_names[::-1]))


@damage(r"part-00002\.parquet: column 'age' holds values outside its declared domain")
def integer_outside(store: Store, manifest: Manifest) -> None:
    replaced(store, manifest, changed(last_part(store, manifest), "age", 91))


@damage("column 'wage' holds values outside")
def drawn_integer_outside(store: Store, manifest: Manifest) -> None:
    replaced(store, manifest, changed(last_part(store, manifest), "wage", -51))


@damage("column 'state' holds values outside")
def text_outside(store: Store, manifest: Manifest) -> None:
    replaced(store, manifest, changed(last_part(store, manifest), "state", "XX"))


@damage("column 'sex' holds values outside")
def category_outside(store: Store, manifest: Manifest) -> None:
    replaced(store, manifest, changed(last_part(store, manifest), "sex", 3))


def changed(table: pa.Table, name: str, value: Any) -> pa.Table:
    """The table with one value of one column replaced."""
    index = table.column_names.index(name)
    field = table.schema.field(index)
    values = [value, *table.column(index).to_pylist()[1:]]
    plain = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    array = pa.array(values, plain)
    array = array.dictionary_encode() if pa.types.is_dictionary(field.type) else array
    return table.set_column(index, field, array)


@damage("is not a readable Parquet file")
def not_parquet(store: Store, manifest: Manifest) -> None:
    content = b"PAR1 of another kind PAR1"
    part = PartRecord(
        name=manifest.parts[0].name,
        rows=manifest.parts[0].rows,
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )
    store.write_bytes(part.name, content)
    store.write_bytes(MANIFEST, manifest.model_copy(update={"parts": (part, *manifest.parts[1:])}).to_bytes())


@damage("records: the rows of the parts do not add up")
def edited_records(store: Store, manifest: Manifest) -> None:
    edited(store, records=manifest.records + 1)


@damage("guarantee: it is not the sentences of the guarantees")
def edited_sentence(store: Store, _: Manifest) -> None:
    edited(store, guarantee="(0.1, 0)-differential privacy")


@damage(r"manifest\.json was edited after it was written")
def reordered_manifest(store: Store, manifest: Manifest) -> None:
    fields = json.loads(manifest.to_bytes())
    store.write_bytes(MANIFEST, (json.dumps(dict(reversed(fields.items())), indent=2) + "\n").encode())


@damage(r"manifest\.json was edited after it was written")
def name_given_twice(store: Store, manifest: Manifest) -> None:
    store.write_bytes(MANIFEST, manifest.to_bytes().replace(b'{\n  "guar', b'{\n  "name": "x",\n  "guar', 1))


@damage(r"is not a valid manifest(.|\n)*parts\.0\.name")
def part_outside(store: Store, manifest: Manifest) -> None:
    fields = json.loads(manifest.to_bytes())
    fields["parts"][0]["name"] = "data/../../x/part-00000.parquet"
    edited(store, parts=fields["parts"])


@damage("parts: a name is listed twice")
def part_named_twice(store: Store, manifest: Manifest) -> None:
    part = json.loads(manifest.to_bytes())["parts"][0]
    edited(store, parts=[part, part], records=2 * part["rows"])


@damage("has a later format: update dpdist")
def later_format(store: Store, _: Manifest) -> None:
    edited(store, schema_version=2)


@damage(r"manifest\.json is not JSON")
def truncated_manifest(store: Store, manifest: Manifest) -> None:
    store.write_bytes(MANIFEST, manifest.to_bytes()[:-20])


@damage(r"manifest\.json is not JSON")
def binary_manifest(store: Store, _: Manifest) -> None:
    store.write_bytes(MANIFEST, b"\xff\xfe\x00")


@damage("is not a valid manifest")
def empty_manifest(store: Store, _: Manifest) -> None:
    store.write_bytes(MANIFEST, b"[]")


@damage("is not finite")
def infinite_number(store: Store, _: Manifest) -> None:
    edited(store, parameters={"epsilon": float("inf")})


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_and_named(place: str, release: Release, name: str) -> None:
    store = Store(place)
    manifest = release(store)
    verify(place)
    make, message = DAMAGES[name]
    make(store, manifest)
    with pytest.raises(VerificationFailed, match=message):
        verify(place)


def test_a_flip_of_any_bit_is_found(tmp_path: Path, release: Release) -> None:
    store = Store(tmp_path / "one")
    manifest = release(store)
    rng = np.random.default_rng(0)
    for name in (*(part.name for part in manifest.parts), MANIFEST):
        content = store.read_bytes(name)
        for at in rng.integers(0, len(content), 20):
            store.write_bytes(name, flip(content, int(at)))
            if name == MANIFEST and not damaging(flip(content, int(at))):
                continue
            with pytest.raises(VerificationFailed):
                verify(store.uri)
        store.write_bytes(name, content)
    verify(store.uri)


def damaging(content: bytes) -> bool:
    """Whether a changed manifest is still a consistent one, which a signature only can tell."""
    try:
        Manifest.from_bytes(content)
    except VerificationFailed:
        return True
    return False
