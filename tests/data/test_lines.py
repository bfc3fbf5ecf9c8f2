"""Cutting CSV bytes: every cut gives the same records."""

from __future__ import annotations

import io
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdist.data import files
from dpdist.data.files import first_record, lines_of_range, records_of_lines
from dpdist.errors import UnreadableFile
from dpdist.spec.data import CsvSpec

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
    LINES,
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.lists(st.integers(0, 200), max_size=6),
    st.integers(1, 30),
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
        (b"\xff\xfea\x00,\x00\n", {}, UnreadableFile, "header of f is not a line of UTF-8"),
        (b"a\x00b\n", {}, UnreadableFile, "header of f is not a line of UTF-8"),
        (b'"a\nb",c\n', {}, UnreadableFile, "header of f is not a line of UTF-8"),
        (b"x" * 3000, {"whole": False}, UnreadableFile, "first 2 KiB hold no complete header"),
        (b"x\n" * 30, {"whole": False, "skip_rows": 50}, UnreadableFile, "hold no complete header"),
    ],
)
def test_bad_headers_are_refused(content: bytes, options: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        head(content, **options)
