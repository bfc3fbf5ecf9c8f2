"""A release made again from its folder alone: without the table, the ledger and the attempt's key."""

import hashlib
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from published import published
from syntheses import choose_instead

from dpdist.errors import DataNotFound, VerificationFailed
from dpdist.families.base.attempt import drawing_key
from dpdist.inference.records import recompute
from dpdist.model.draw import FORMAT
from dpdist.model.files import read_model
from dpdist.publish.manifest import MANIFEST, Manifest
from dpdist.publish.parts import parquet_bytes
from dpdist.publish.verify import open_release, verify

RAKED = {
    "one_way": 0.1,
    "rake": 0.7,
    "triples": 0.2,
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published(tmp_path_factory.mktemp("plain"))


@pytest.fixture
def copy(plain: Path, tmp_path: Path) -> Path:
    shutil.copytree(plain, tmp_path / "copy")
    return tmp_path / "copy"


def test_all_bytes_are_made_again(plain: Path) -> None:
    found = recompute(plain)
    assert (found.parts, found.records, found.rewritten) == (3, 2_500, ())
    report = verify(plain)
    assert report.unlisted == ()
    store, manifest = open_release(plain)
    assert read_model(store, manifest).key == drawing_key(manifest.attempt)
    made = [record.name.rsplit("/", 1)[-1] for record in manifest.files if record.name.startswith("_model/")]
    assert set(made) == {
        "model.json",
        "model.columnar",
        "tables.columnar",
    }


def test_a_raked_release_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose_instead(monkeypatch, RAKED)
    folder = published(tmp_path, model={"rounds": 1}, privacy={"epsilon": 20, "delta": 1e-7})
    assert recompute(folder).rewritten == ()
    store, manifest = open_release(folder)
    assert read_model(store, manifest).fitted.adjustment is not None


def _edit_manifest(folder: Path, name: str, content: bytes) -> None:
    """Whoever changes a file may change the manifest as well."""
    path = folder / MANIFEST
    fields = json.loads(path.read_text())
    for record in (*fields["parts"], *fields["files"]):
        if record["name"] == name:
            record |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    path.write_bytes(Manifest.model_validate(fields).to_bytes())
    (folder / name).write_bytes(content)


def test_a_changed_record_is_named(copy: Path) -> None:
    _, manifest = open_release(copy)
    name = manifest.parts[1].name
    part = pq.read_table(copy / name)
    regions = part["region"].to_pylist()
    regions[17] = next(value for value in regions if value != regions[17])
    content = parquet_bytes(part.set_column(part.column_names.index("region"), "region", pa.array(regions)))
    (copy / name).write_bytes(content.ljust((copy / name).stat().st_size, b"\0")[: len(content)])
    _edit_manifest(copy, name, content)
    with pytest.raises(VerificationFailed, match=rf"{name}: 1 record not as .* row 17 "):
        recompute(copy)


def test_the_same_records_in_other_bytes_are_told(copy: Path) -> None:
    _, manifest = open_release(copy)
    name = manifest.parts[0].name
    sink = pa.BufferOutputStream()
    pq.write_table(pq.read_table(copy / name), sink, compression="none")
    _edit_manifest(copy, name, sink.getvalue().to_pybytes())
    assert recompute(copy).rewritten == (name,)


def test_a_chosen_key_is_refused(copy: Path) -> None:
    _, manifest = open_release(copy)
    name = next(record.name for record in manifest.files if record.name.endswith("model.json"))
    about = json.loads((copy / name).read_text())
    about["drawing"]["key"] = "00" * 32
    _edit_manifest(copy, name, json.dumps(about).encode())
    with pytest.raises(VerificationFailed, match="not that of the attempt"):
        recompute(copy)


@pytest.mark.parametrize("number", [FORMAT - 1, FORMAT + 1])
def test_a_model_of_another_format_is_refused(copy: Path, number: int) -> None:
    """Weights of its pool belong to rows that this version does not draw."""
    store, manifest = open_release(copy)
    name = next(record.name for record in manifest.files if record.name.endswith("model.json"))
    about = json.loads((copy / name).read_text())
    assert about["format"] == FORMAT
    _edit_manifest(copy, name, json.dumps(about | {"format": number}).encode())
    store, manifest = open_release(copy)
    for read in (lambda: recompute(copy), lambda: read_model(store, manifest)):
        with pytest.raises(VerificationFailed, match=f"has format {number}, .* use the version that made the release"):
            read()


def test_a_damaged_model_is_refused(copy: Path) -> None:
    _, manifest = open_release(copy)
    name = next(record.name for record in manifest.files if record.name.endswith("model.columnar"))
    _edit_manifest(copy, name, b"PAR1")
    with pytest.raises(VerificationFailed, match="not in their format"):
        recompute(copy)
    (copy / name).write_bytes(b"PAR2")
    with pytest.raises(VerificationFailed, match="SHA-256"):
        verify(copy)


def test_without_measurements_there_is_no_model(tmp_path: Path) -> None:
    output = {"path": str(tmp_path / "release"), "rows_per_part": 1_000, "measurements": False}
    folder = published(tmp_path, output=output)
    assert verify(folder).records == 2_500
    with pytest.raises(DataNotFound, match=r"output\.measurements"):
        recompute(folder)


def test_readers_of_the_folder_pass_over_the_model(plain: Path) -> None:
    assert pq.read_table(plain).num_rows == 2_500
