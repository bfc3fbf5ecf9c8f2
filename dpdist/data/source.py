"""The files of a table: files, folders or globs, local or ``s3://``, found through fsspec in a fixed order.

Files are numbered in the order of their paths. The number of a file and the number of a row in it are the address
of a record, which the split and every keyed draw use. The address does not depend on the partitions.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from glob import has_magic
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from urllib.parse import unquote

from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import glob_translate

from dpdist.errors import DataNotFound, SpecError
from dpdist.spec.data import CsvSpec, ParentTable
from dpdist.storage.files import columns_of_folders, compression_of, is_local, is_passed_over, storage_errors
from dpdist.storage.s3 import filesystem, is_s3, require_plain

Format = Literal["parquet", "csv"]

ExtraColumns = Literal["refuse", "ignore"]
"""What to do with columns that the schema does not name."""

_SUFFIXES: Mapping[str, Format] = {".parquet": "parquet", ".parq": "parquet", ".pq": "parquet", ".csv": "csv"}


STORES = frozenset((
    "file", "local", "memory", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "hdfs", "http", "https", "sftp",
    "ssh",
))  # fmt: skip
"""Protocols of paths: file systems that hold files themselves."""


def _refuse_wrapped(path: str) -> None:
    """Refuse an address within another one: a file that a contract names would have a second name."""
    protocol, _, rest = path.partition("://")
    if "::" not in path:
        if not rest or protocol in STORES:
            return
        from fsspec import available_protocols

        if protocol not in available_protocols():
            return  # there is no such file system
    raise SpecError(
        f"data.path: {path!r} is an address within another file system (a cache, an archive or a chain with `::`); "
        "give the plain path of the file, or its s3:// address"
    )


@dataclass(frozen=True)
class TableSource:
    """The files of a table."""

    # files, folders (searched at every depth) or globs; local, ``s3://`` or another of `STORES`. Files found twice, by
    # symbolic or hard links as well, count once; in folders and globs, names that begin with ``_`` or ``.``, markers,
    # checksums and a README are ignored, and links to folders are not followed
    paths: tuple[str, ...]
    # inferred from the names of the files if absent. CSV files may be compressed (inferred from the suffix)
    format: Format | None = None
    csv: CsvSpec = field(default_factory=CsvSpec)  # how CSV files are laid out
    extra_columns: ExtraColumns = "refuse"  # what to do with columns that the schema does not name
    # keyword arguments of the fsspec file system of remote paths (endpoint, profile); hidden in ``repr``
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    beside: str | None = None  # column read beside those of the schema: ids of units, or weights
    # where the attributes of units have a table of their own: its files, which are among `paths`, too
    parent: ParentTable | None = None

    def __post_init__(self) -> None:
        if isinstance(self.paths, str) or not self.paths:
            raise SpecError("data.path must name at least one file, folder or glob")
        if any(re.search("://[^/@]*:[^/]*@", str(path)) for path in self.paths):
            raise SpecError(
                "data.path holds a password, which errors would show: withdraw it, and give credentials through the "
                "environment (AWS_ACCESS_KEY_ID, ...) or a profile"
            )
        for path in map(str, self.paths):
            _refuse_wrapped(path)
            require_plain(path)
        object.__setattr__(self, "paths", tuple(map(str, self.paths)))
        object.__setattr__(self, "storage_options", dict(self.storage_options))


@dataclass(frozen=True, order=True)
class FoundFile:
    """A file: full path, size in bytes, and a stamp (ETag or time of modification) that distinguishes versions."""

    path: str
    size: int
    stamp: str
    # columns that the names of its folders below the path of the source give (``state=01``), None for a missing value
    folders: tuple[tuple[str, str | None], ...] = ()

    @property
    def shown(self) -> str:
        """The path for messages, without the values that its folders give."""
        given = {name for name, _ in self.folders}
        parts = [part.partition("=") for part in self.path.split("/")]
        hidden = [f"{name}=…" if sign and unquote(name) in given else name + sign + rest for name, sign, rest in parts]
        return "/".join(hidden)


def find_files(source: TableSource) -> tuple[FoundFile, ...]:
    """List the files of a table, sorted by path. Raises DataNotFound: a path leads to no file, the bucket does not
    exist or access is denied; StorageUnavailable: the storage does not answer; SpecError: there is no file system for a
    path's protocol.
    """
    found: set[FoundFile] = set()
    for path in source.paths:
        with storage_errors(path):
            fs, root = filesystem(path, source.storage_options)
            fs.invalidate_cache()
            entries, fixed = _expand(fs, root), str(_fixed(root))
            if not entries:
                raise DataNotFound(_nothing_there(fs, root, path))
            if any("\udc80" <= letter <= "\udcff" for name in entries for letter in name):
                raise DataNotFound(f"a file or folder of {path} has a name that is no UTF-8: rename it")
            for name, info in entries.items():
                folders = columns_of_folders(name.removeprefix(fixed) if name.startswith(fixed) else "")
                found.add(FoundFile(_full_path(fs, name), int(info["size"]), _stamp(fs, name, info), folders))
    first = sorted(found, key=lambda file: (file.path, -len(file.folders)))  # as the outermost of the paths has it
    once = {_identity(file.path): file for file in first[::-1]}
    return tuple(sorted(once.values()))


def _identity(path: str) -> object:
    """What two names of one file have in common, such as symbolic and hard links."""
    if not is_local(path):
        return path
    with storage_errors(path):
        status = os.stat(path)
    return status.st_dev, status.st_ino


def fingerprint(source: TableSource) -> str:
    """SHA-256 over path, size and ETag (or time of modification) of every file, in hexadecimal; reads no record. Of two
    joined tables it tells which files are the parents'.
    """
    if source.parent is None:
        return fingerprint_of(find_files(source))
    return fingerprint_of_sides(*(fingerprint(side) for side in sides_of(source)))


def sides_of(source: TableSource) -> tuple[TableSource, TableSource]:
    """The files of the records, and those of their parents. ValueError: the source has no parents."""
    if source.parent is None:
        raise ValueError("a table without parents has no sides")
    own = tuple(path for path in source.paths if path not in source.parent.paths)
    return replace(source, paths=own, parent=None), replace(source, paths=source.parent.paths, parent=None)


def fingerprint_of_sides(records: str, parents: str) -> str:
    """The `fingerprint` of joined tables with these."""
    return hashlib.sha256(f"{records} {parents}".encode()).hexdigest()


def fingerprint_of(files: tuple[FoundFile, ...]) -> str:
    """The `fingerprint` of files already found."""
    text = json.dumps([[file.path, file.size, file.stamp] for file in files])
    return hashlib.sha256(text.encode()).hexdigest()


def beginnings(source: TableSource) -> tuple[str, ...]:
    """The fixed beginnings of the paths of a table, before any pattern; opens nothing."""
    found = []
    for path in source.paths:
        with storage_errors(path):
            fs, root = filesystem(path, source.storage_options)
            found.append(_full_path(fs, str(_fixed(root))))
    return tuple(found)


def is_input(source: TableSource, file: Path) -> bool:
    """Whether a local file is one of the table's, by its address."""
    own = [Path(path).resolve() for path in source.paths if not is_s3(path)]
    return file.resolve() in own or would_find(source, str(file))


def would_find(source: TableSource, file: str) -> bool:
    """Whether a file written at an address, local or ``s3://``, would become one of the table's; opens nothing."""
    written, is_file_local = PurePosixPath(file.removeprefix("s3://")), not is_s3(file)
    if is_file_local:
        written = PurePosixPath(os.path.realpath(file))
    for path in source.paths:
        with storage_errors(path):
            fs, root = filesystem(path, source.storage_options)
            if is_s3(path) == is_file_local or isinstance(fs, LocalFileSystem) != is_file_local:
                continue
            is_pattern = has_magic(root) and not fs.exists(root)
        fixed = _fixed(root) if is_pattern else PurePosixPath(root)
        rest = PurePosixPath(root).relative_to(fixed)
        fixed = PurePosixPath(os.path.realpath(fixed)) if is_file_local else fixed
        if fixed not in written.parents or is_passed_over(written.relative_to(fixed).parts):
            continue
        pattern = re.compile(glob_translate(f"{fixed / rest}"))
        if not is_pattern or any(pattern.match(str(place)) for place in (written, *written.parents)):
            return True
    return False


def format_of(source: TableSource, files: tuple[FoundFile, ...]) -> Format:
    """The declared format, or the one all the files' names agree on. Raises SpecError: the names do not show the
    format, or disagree.
    """
    if source.format is not None:
        return source.format
    formats: dict[Format, str] = {}
    for file in files:
        suffixes = [suffix.lower() for suffix in PurePosixPath(file.path).suffixes]
        if len(suffixes) > 1 and compression_of(file.path):
            suffixes.pop()
        kind = _SUFFIXES.get(suffixes[-1]) if suffixes else None
        if kind is None:
            raise SpecError(f"the name of {file.path} does not show its format: set data.format to parquet or csv")
        formats.setdefault(kind, file.path)
    if len(formats) > 1:
        raise SpecError(
            f"{' and '.join(sorted(formats.values()))} have different formats: name files of one format, "
            "or set data.format"
        )
    return next(iter(formats))


def _expand(fs: Any, root: str) -> dict[str, dict[str, Any]]:
    """Files of a path: itself, those below it, or those (and those below folders) that match it."""
    try:
        info = fs.info(root)
    except FileNotFoundError:
        if not has_magic(root):
            return {}
        entries: dict[str, dict[str, Any]] = {}
        fixed = _fixed(root)
        for name, match in fs.glob(root, detail=True).items():
            if not is_passed_over(PurePosixPath(name).relative_to(fixed).parts):
                entries |= {name: match} if _is_file(match) else _below(fs, name)
        return entries
    return {root: info} if _is_file(info) else _below(fs, root)


def _is_file(info: Mapping[str, Any]) -> bool:
    """Whether an entry is a file or a link to one; a broken link counts as a file that cannot be read."""
    name = info["name"]
    linked = info.get("islink", False) and (os.path.isfile(name) or not os.path.exists(name))
    return linked or info["type"] == "file"


def _fixed(pattern: str) -> PurePosixPath:
    """The folder that a pattern begins with."""
    return PurePosixPath(*takewhile(lambda part: not has_magic(part), PurePosixPath(pattern).parts))


def _below(fs: Any, folder: str) -> dict[str, dict[str, Any]]:
    prefix = folder.rstrip("/") + "/"
    return {
        name: info
        for name, info in fs.find(folder, detail=True).items()
        if _is_file(info)
        and not name.endswith("/")
        and name != folder
        and not is_passed_over(name.removeprefix(prefix).split("/"))
    }


def _full_path(fs: Any, name: str) -> str:
    return os.path.abspath(name) if isinstance(fs, LocalFileSystem) else str(fs.unstrip_protocol(name))


def _stamp(fs: Any, name: str, info: Mapping[str, Any]) -> str:
    if isinstance(fs, LocalFileSystem):
        status = os.stat(name)  # the time of change cannot be set back, as that of modification can
        return f"{status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"
    for key in ("ETag", "etag", "md5", "LastModified", "last_modified", "mtime"):
        if info.get(key):
            return str(info[key]).strip('"')
    return str(fs.ukey(name))


def _nothing_there(fs: Any, root: str, path: str) -> str:
    bucket = root.split("/", 1)[0]
    if not isinstance(fs, LocalFileSystem) and "s3" in fs.protocol and not fs.exists(bucket):
        return f"there is no bucket {bucket!r} (or it may not be listed): check data.path and data.storage"
    if has_magic(root):
        return f"no file matches {path}: check data.path"
    if fs.exists(root):
        return f"the folder {path} holds no data file (names that start with _ or ., markers and checksums are ignored)"
    return f"there is no file at {path}: check data.path"
