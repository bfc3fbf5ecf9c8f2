"""Finding files, telling their versions apart, and saying what is wrong with a path."""

import io
import os
import pickle
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdist.data import files
from dpdist.data.files import first_record, lines_of_range, records_of_lines
from dpdist.data.source import TableSource, beginnings, find_files, fingerprint, format_of, would_find
from dpdist.errors import DataNotFound, DpdistError, SpecError, StorageUnavailable, UnreadableFile
from dpdist.spec.data import CsvSpec, ParentTable
from dpdist.spec.validation import validated
from dpdist.storage.files import storage_errors


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("a\n1\n")


def names(folder: Path, *paths: str) -> list[str]:
    found = find_files(TableSource(tuple(str(folder / p) if p else str(folder) for p in paths)))
    return [str(Path(file.path).relative_to(folder)) for file in found]


def test_files_folders_and_globs(tmp_path: Path) -> None:
    touch(tmp_path, "b.csv", "a.csv", "B.csv", "10.csv", "9.csv", "sub/c.csv", "sub/deep/d.csv")
    touch(tmp_path, "_SUCCESS", ".hidden.csv", "_metadata", "_old/e.csv", "sub/.part.crc", "sub/_tmp/f.csv")
    every = ["10.csv", "9.csv", "B.csv", "a.csv", "b.csv", "sub/c.csv", "sub/deep/d.csv"]
    assert names(tmp_path, "") == every
    assert names(tmp_path, "*.csv") == every[:5]
    assert names(tmp_path, "sub*") == every[5:]
    assert names(tmp_path, "**/*.csv") == every
    assert names(tmp_path, "b.csv", "*.csv", "sub", "sub/deep/d.csv", "a.csv") == every
    assert names(tmp_path, ".hidden.csv") == [".hidden.csv"]
    assert names(tmp_path, "[ab].csv") == ["a.csv", "b.csv"]
    touch(tmp_path, "[x].csv")
    assert names(tmp_path, "[x].csv") == ["[x].csv"]


@pytest.mark.parametrize("path", ["", "*", "sub", "s*", "**/*.parquet", "*.csv", "[s]ub/x*", "sub/*/", "a.csv", "**"])
@pytest.mark.parametrize(
    "file", ["x.csv", "sub/x.csv", "sub/x/1/p.parquet", "sub/.x/p.parquet", "_x/p.parquet", "y/.p.parquet", "sub2/z"]
)
def test_what_would_be_found_is_what_is_found(tmp_path: Path, path: str, file: str) -> None:
    touch(tmp_path, "a.csv", "sub/a.csv")
    source = TableSource((f"{tmp_path}/{path}",))
    foretold = would_find(source, str(tmp_path / file))
    touch(tmp_path, file)
    try:
        found = names(tmp_path, path)
    except DataNotFound:
        found = []
    assert foretold == (file in found)


def test_what_would_be_found_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert would_find(TableSource((str(tmp_path),)), f"{tmp_path}/link/x.csv")
    assert would_find(TableSource((f"{tmp_path}/link/*",)), f"{tmp_path}/x.csv")
    bucket = TableSource((str(tmp_path / "none"), "s3://bucket/in"))
    assert beginnings(bucket) == (str(tmp_path / "none"), "s3://bucket/in")
    assert would_find(bucket, "s3://bucket/in/release/x.parquet")
    for place in ("s3://bucket/inside/x", "s3://bucket/in", "/bucket/in/x", f"{tmp_path}/x", "s3://bucket/in/_x/y"):
        assert not would_find(bucket, place)


def test_a_file_with_two_names_counts_once(tmp_path: Path) -> None:
    """A second name, a hard link too, would double every record, and so what one person moves."""
    touch(tmp_path, "hard/a.csv", "hard/d.csv")
    (tmp_path / "hard/b.csv").hardlink_to(tmp_path / "hard/a.csv")
    assert (
        names(tmp_path, "hard")
        == names(tmp_path, *(f"hard/{name}.csv" for name in "dba"))
        == ["hard/a.csv", "hard/d.csv"]
    )
    touch(tmp_path, "t/b.csv", "elsewhere")
    for name, target in (("t/a.csv", "b.csv"), ("t/z.csv", "../elsewhere"), ("t/loop", ".")):
        (tmp_path / name).symlink_to(target)
    assert names(tmp_path, "t") == names(tmp_path, "t/*.csv", "t/b.csv") == ["t/a.csv", "t/z.csv"]
    assert names(tmp_path, "t", "elsewhere") == ["elsewhere", "t/a.csv"]
    (tmp_path / "t/gone.csv").symlink_to("nowhere")
    with pytest.raises(DataNotFound):
        names(tmp_path, "t")


def test_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "t/a.csv")
    monkeypatch.chdir(tmp_path)
    for path in ("t/a.csv", "t", "./t/*.csv", f"file://{tmp_path}/t"):
        assert [file.path for file in find_files(TableSource((path,)))] == [str(tmp_path / "t/a.csv")]


def test_the_fingerprint_tells_which_files_are_the_parents(tmp_path: Path) -> None:
    """Exchanged in a resume, both tables had the noise of the other, and the difference of two counts was exact."""
    paths = [str(tmp_path / name) for name in ("persons.csv", "households.csv")]
    for path in paths:
        Path(path).write_text("id,region\n1,north\n")
    found = {
        fingerprint(TableSource(tuple(paths), parent=ParentTable(path=(path,), attributes=("region",))))
        for path in paths
    }
    assert len(found | {fingerprint(TableSource(tuple(paths)))}) == 3


def test_the_fingerprint_tells_versions_apart(tmp_path: Path) -> None:
    touch(tmp_path, "a.csv", "b.csv")
    source = TableSource((str(tmp_path),))
    first = fingerprint(source)
    assert first == fingerprint(TableSource((str(tmp_path / "b.csv"), str(tmp_path / "a.csv"))))
    assert len(first) == 64
    stat = (tmp_path / "a.csv").stat()
    os.utime(tmp_path / "a.csv", ns=(0, stat.st_mtime_ns + 1))  # one nanosecond later
    second = fingerprint(source)
    (tmp_path / "a.csv").write_text("a\n1\n2\n")
    os.utime(tmp_path / "a.csv", ns=(0, stat.st_mtime_ns))
    third = fingerprint(source)
    time.sleep(0.02)  # older kernels tell the times of changes apart from tick to tick only
    (tmp_path / "a.csv").write_text("a\n1\n")
    os.utime(tmp_path / "a.csv", ns=(0, stat.st_mtime_ns))
    fourth = fingerprint(source)  # the same bytes with the old time of modification: still another version
    assert fourth not in (first, second, third)
    touch(tmp_path, "c.csv")
    assert len({first, second, third, fingerprint(source)}) == 4


@pytest.mark.parametrize(
    ("declared", "files", "expected"),
    [
        (None, ["a.parquet", "b.pq", "c.PARQ"], "parquet"),
        (None, ["a.csv", "b.csv.gz", "c.v1.CSV.bz2"], "csv"),
        ("csv", ["adult.data", "adult.test"], "csv"),
    ],
)
def test_formats(tmp_path: Path, declared: Any, files: list[str], expected: str) -> None:
    touch(tmp_path, *files)
    source = TableSource((str(tmp_path),), format=declared)
    assert format_of(source, find_files(source)) == expected


def test_formats_that_cannot_be_told(tmp_path: Path) -> None:
    touch(tmp_path, "a.csv", "adult.data", "x/a.csv", "x/b.parquet")
    for path, message in (
        ("adult.data", r"adult.data does not show its format: set data\.format"),
        ("x", "different formats"),
    ):
        source = TableSource((str(tmp_path / path),))
        with pytest.raises(SpecError, match=message):
            format_of(source, find_files(source))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("none.csv", "there is no file at .*none.csv: check data.path"),
        ("none/", "there is no file at"),
        ("*.parquet", r"no file matches .*\*\.parquet"),
        ("empty", "the folder .*empty holds no data file"),
        ("hidden", "the folder .*hidden holds no data file"),
    ],
)
def test_nothing_there(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    touch(tmp_path, "a.csv", "hidden/_SUCCESS")
    with pytest.raises(DataNotFound, match=message):
        find_files(TableSource((str(tmp_path / "a.csv"), str(tmp_path / path))))


def test_access_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(LocalFileSystem, "info", denied)
    with pytest.raises(DataNotFound, match=r"access to .*a\.csv is denied: check the file's permissions"):
        find_files(TableSource((str(tmp_path / "a.csv"),)))


class NoCredentialsError(Exception):
    """Named like botocore's."""


class EndpointConnectionError(Exception):
    """Named like botocore's."""


for _error in (NoCredentialsError, EndpointConnectionError):
    _error.__module__ = "botocore.exceptions"


@pytest.mark.parametrize(
    ("raised", "error", "message"),
    [
        (FileNotFoundError(2, "x"), DataNotFound, "there is no file at s3://b/k"),
        (PermissionError("Forbidden"), DataNotFound, "access to s3://b/k is denied"),
        (ConnectionResetError(), StorageUnavailable, "the storage of s3://b/k does not answer"),
        (TimeoutError(), StorageUnavailable, "the storage of s3://b/k does not answer"),
        (NoCredentialsError("x"), DataNotFound, "no credentials for s3://b/k: set the AWS_"),
        (EndpointConnectionError("x"), StorageUnavailable, "the storage of s3://b/k does not answer.*endpoint_url"),
        (ModuleNotFoundError("x", name="s3fs"), SpecError, "needs a package that is not installed: s3fs"),
        (ValueError("Protocol not known: s4"), SpecError, "s3://b/k cannot be opened: Protocol not known: s4"),
        (OSError(5, "Input/output error"), UnreadableFile, "s3://b/k cannot be read: Input/output error"),
        (OSError(16, "a server's text"), StorageUnavailable, "the storage of s3://b/k does not answer"),
        (OSError(22, "a server's text"), UnreadableFile, "s3://b/k cannot be read: Invalid argument"),
        (OSError("17,8,18"), UnreadableFile, "s3://b/k cannot be read: OSError"),
        (ValueError("another"), ValueError, "another"),
        (KeyError("another"), KeyError, "another"),
        (SpecError("as it is"), SpecError, "as it is"),
    ],
)
def test_errors_of_storage(raised: Exception, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught, storage_errors("s3://b/k"):
        raise raised
    if isinstance(caught.value, DpdistError):
        assert caught.value.__suppress_context__ or caught.value is raised


@pytest.mark.parametrize("path", ["s3://id:planted@bucket/x.csv", "zip://x.csv::sftp://me:planted@host/x.zip"])
def test_a_path_holds_no_password(path: str) -> None:
    with pytest.raises(SpecError, match="holds a password") as caught:
        TableSource(("x.csv", path))
    assert "planted" not in str(caught.value)
    TableSource(("sftp://me@host/x.csv", "s3://bucket/a:b@c.csv", "a:b@c.csv"))


@pytest.mark.parametrize(
    "path",
    [
        "simplecache::file:///data/t.csv",
        "filecache::s3://b/t.csv",
        "zip://t.csv::/data/t.zip",
        "dir://t.csv::/data",
        "asyncwrapper:///data/t.csv",
        "simplecache:///data/t.csv",
    ],
)
def test_a_file_has_no_second_name(path: str) -> None:
    with pytest.raises(SpecError, match="address within another file system"):
        TableSource((path,))


@pytest.mark.parametrize(
    "path", ["s3:///b/t.csv", "s3a:///b/t.csv", "s3://", "s3://*/t.csv", "s3://b/t.csv?versionId=1"]
)
def test_an_object_has_no_second_name(path: str) -> None:
    with pytest.raises(SpecError, match="no plain address of S3"):
        TableSource((path,))
    TableSource(("s3://b_1/????-??.csv", "s3a://My.bucket"))


def test_an_unknown_protocol() -> None:
    with pytest.raises(SpecError, match="s4://b/k cannot be opened: Protocol not known"):
        find_files(TableSource(("s4://b/k",)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"header": False}, "needs `columns`"),
        ({"delimiter": ""}, "delimiter"),
        ({"delimiter": '"'}, "`delimiter`"),
        ({"delimiter": "||"}, "delimiter"),
        ({"delimiter": "§"}, "`delimiter`"),
        ({"comment": ""}, "`comment`"),
        ({"comment": "a\nb"}, "`comment`"),
        ({"skip_rows": -1}, "skip_rows"),
        ({"columns": ("a", "a")}, "`columns` names a column twice"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        validated(CsvSpec, options)


@pytest.mark.parametrize("paths", [(), "a.csv"])
def test_bad_paths(paths: Any) -> None:
    with pytest.raises(SpecError, match=r"data.path"):
        TableSource(paths)


def test_a_source_travels_and_hides_its_options() -> None:
    source = TableSource(("s3://b/k",), storage_options={"key": "secret"})
    assert "secret" not in repr(source)
    assert pickle.loads(pickle.dumps(source)) == source


def test_s3(s3: Any, s3_server: str) -> None:
    options = {"endpoint_url": s3_server}
    for name in ("t/b.csv", "t/a.csv", "t/_SUCCESS", "t/sub/c.csv", "t/", "u.csv"):
        s3.pipe(f"census/{name}", b"" if name.endswith("/") else b"a\n1\n")

    def found(*paths: str) -> list[str]:
        return [file.path for file in find_files(TableSource(paths, storage_options=options))]

    every = ["s3://census/t/a.csv", "s3://census/t/b.csv", "s3://census/t/sub/c.csv"]
    assert found("s3://census/t") == found("s3://census/t/") == every
    assert found("s3://census/t/*.csv") == every[:2]
    assert found("s3://census/t/*.csv", "s3://census/t/a.csv") == every[:2]
    assert found("s3://census/u.csv", "s3://census/t/sub/c.csv") == [every[2], "s3://census/u.csv"]
    source = TableSource(("s3://census/t",), storage_options=options)
    first = fingerprint(source)
    assert first == fingerprint(TableSource(tuple(every), storage_options=options))
    s3.pipe("census/t/a.csv", b"a\n2\n")
    assert fingerprint(source) != first


def test_what_is_wrong_on_s3(s3: Any, s3_server: str) -> None:
    from moto.core import set_initial_no_auth_action_count

    s3.pipe("census/t/a.csv", b"a\n1\n")

    def find(path: str) -> Any:
        return find_files(TableSource((path,), storage_options={"endpoint_url": s3_server}))

    with pytest.raises(DataNotFound, match="there is no bucket 'elsewhere'"):
        find("s3://elsewhere/t/a.csv")
    with pytest.raises(DataNotFound, match="there is no bucket 'elsewhere'"):
        find("s3://elsewhere/*.csv")
    with pytest.raises(DataNotFound, match=r"there is no file at s3://census/t/b.csv"):
        find("s3://census/t/b.csv")
    with pytest.raises(DataNotFound, match=r"no file matches s3://census/t/\*\.parquet"):
        find("s3://census/t/*.parquet")

    @set_initial_no_auth_action_count(0)
    def find_without_permission() -> None:
        find("s3://census/t/a.csv")

    with pytest.raises(DataNotFound, match=r"access to s3://census/t/a.csv is denied: check .* credentials"):
        find_without_permission()


# --- Cutting CSV bytes: every cut gives the same records


LINES = st.lists(st.sampled_from(["", "a,b", "#x", "c" * 40, '"d, d",e', "é", '"f ""g"""']), max_size=12)


def records(content: bytes, cuts: list[int], block: int) -> list[bytes]:
    result = []
    bounds = [0, *sorted(min(c, len(content)) for c in cuts), len(content)]
    for start, stop in pairwise(bounds):
        file = io.BytesIO(content)
        aligned = start == 0
        file.seek(start - (not aligned))
        for text in lines_of_range(file.read, start=start, stop=stop, aligned=aligned, block_bytes=block, path="f"):
            assert text.endswith(b"\n")
            result += records_of_lines(text, options=CsvSpec(comment="#"), path="f").splitlines()
    return result


@settings(max_examples=120, deadline=None)
@given(
    LINES, st.sampled_from(["\n", "\r\n"]), st.booleans(), st.lists(st.integers(0, 200), max_size=6), st.integers(1, 30)
)
def test_every_cut_gives_the_same_records(
    texts: list[str], line_break: str, ends: bool, cuts: list[int], block: int
) -> None:
    content = (line_break.join(texts) + (line_break if ends else "")).encode()
    expected = [text.encode() for text in texts if text and not text.startswith("#")]
    assert records(content, cuts, block) == expected
    file = io.BytesIO(content)
    whole = lines_of_range(file.read, start=0, stop=None, aligned=True, block_bytes=block, path="f")
    assert [
        r for text in whole for r in records_of_lines(text, options=CsvSpec(comment="#"), path="f").splitlines()
    ] == expected


def test_comments_are_kept_where_none_is_declared() -> None:
    assert records_of_lines(b"#x,1\n\n|y,2\r\n", options=CsvSpec(), path="f") == b"#x,1\n|y,2\r\n"
    assert records_of_lines(b"//x\n/y\n", options=CsvSpec(comment="//"), path="f") == b"/y\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'1,"two\nlines"\n', "spans several lines or a quote is not closed"),
        (b'1,5" pipe\n', "spans several lines or a quote is not closed"),
        (b"1,2\r3,4\r", "carriage returns"),
    ],
)
def test_what_cannot_be_cut_is_refused(text: bytes, message: str) -> None:
    with pytest.raises(UnreadableFile, match=message):
        records_of_lines(text, options=CsvSpec(), path="f")


@pytest.mark.parametrize("cut", [0, 3])
def test_a_file_without_line_breaks_is_refused(monkeypatch: pytest.MonkeyPatch, cut: int) -> None:
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 1 << 20)
    file = io.BytesIO(b"x\n" + bytes(3 << 20))
    with pytest.raises(UnreadableFile, match="a line longer than 1 MiB"):
        list(lines_of_range(file.read, start=0, stop=cut or 1 << 22, aligned=True, block_bytes=1 << 19, path="f"))


def head(content: bytes, **options: Any) -> tuple[tuple[str, ...] | None, int]:
    whole = options.pop("whole", True)
    return first_record(content, CsvSpec(columns=("x",), **options), whole=whole, path="f")


def test_where_records_start() -> None:
    assert head(b"a,b\n1,2\n") == (("a", "b"), 4)
    assert head(b"\xef\xbb\xbfa, b \r\n1,2\n") == (("a", "b"), 10)
    assert head(b"a, b\n", strip=False) == (("a", " b"), 5)
    assert head(b'"a;x";b\n', delimiter=";") == (("a;x", "b"), 8)
    assert head(b"title\n\n|note\na,b\n1,2", skip_rows=1, comment="|") == (("a", "b"), 17)
    assert head(b"junk\n1,2\n", header=False, skip_rows=1) == (None, 5)
    assert head(b"a,b") == (("a", "b"), 3)
    assert head(b"") == ((), 0)
    assert head(b"only a title\n", skip_rows=3) == ((), 13)


@pytest.mark.parametrize(
    ("content", "options", "error", "message"),
    [
        (b"\xff\xfea\x00,\x00\n", {}, UnreadableFile, "header of f is not a line of UTF-8.*set data.csv.encoding"),
        (b"a\x00b\n", {}, UnreadableFile, "header of f is not a line of UTF-8"),
        (b'"a\nb",c\n', {}, UnreadableFile, "header of f is not a line of UTF-8"),
        (b"x" * 3000, {"whole": False}, UnreadableFile, "first 2 KiB hold no complete header"),
        (b"x\n" * 30, {"whole": False, "skip_rows": 50}, UnreadableFile, "hold no complete header"),
    ],
)
def test_bad_headers_are_refused(content: bytes, options: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        head(content, **options)
