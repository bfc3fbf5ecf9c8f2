"""Where releases and stage results are stored: a folder, or a prefix of an S3 bucket.

Every file appears whole or not at all. Locally it is written under a hidden name, flushed to the disk and renamed;
on S3 it is one PUT. Nothing is ever moved, and no listing decides what is visible: readers start at a name they know.

The S3 libraries retry: botocore repeats throttled, failed (5xx) and timed-out requests with exponential back-off and
jitter, and s3fs repeats answers that break off. Remaining errors become errors of dpdist (`dpdist.storage.files`).
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import stat
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, NoReturn

import fsspec

from dpdist.errors import DataNotFound, SpecError
from dpdist.storage import local
from dpdist.storage.files import s3_code, translated
from dpdist.storage.s3 import address, s3_filesystem

_SINGLE_PUT = 3 * 2**30  # s3fs uploads in parts from twice this size, and a PUT holds 5 GiB at most
_COMPONENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=-]{0,199}")
_SECRETS = {"key", "secret", "token", "username", "password"} | {
    f"aws_{name}" for name in ("access_key_id", "secret_access_key", "session_token")
}
_TAKEN = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}


class Store:
    """A folder or an S3 prefix, and the only way to write a release or a stage result.

    Names are relative: components of letters, digits and ``. _ = -`` with ``/`` between them. A component never starts
    with a dot, and no name leads out of the store, not even through a symbolic link.

    The address is a local path, or ``s3://bucket/prefix``. The folder is made when first written to. Missing folders
    above it are made for a relative path only, because an absolute one may lead to a file system that is not mounted.
    `storage_options` are those of `s3fs.S3FileSystem`, such as ``endpoint_url``. Credentials belong in the environment
    or in a profile, where every worker finds its own; a store whose options hold credentials cannot be pickled.

    Raises SpecError: the address is neither local nor S3, or holds credentials or components that are dotted or empty.
    """

    def __init__(self, uri: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> None:
        scheme, separator, rest = os.fspath(uri).partition("://")
        if separator and scheme not in ("file", "local", "s3", "s3a"):
            raise SpecError("the storage is not supported: expected a local path or s3://bucket/prefix")
        self._options = dict(storage_options or {})
        self._inner = ""
        self._parents = False
        self.is_local = not (separator and scheme.startswith("s3"))
        if self.is_local:
            path = os.path.expanduser(rest if separator else os.fspath(uri))
            if not path or "\0" in path:
                raise SpecError("the path is empty or holds a NUL: expected a local path or s3://bucket/prefix")
            self._parents = not os.path.isabs(path)
            self._root = os.path.abspath(path)
            self._fs = fsspec.filesystem("file")
        else:
            self._root = _bucket_and_prefix(rest)
            self._fs = s3_filesystem(self._options)

    @property
    def uri(self) -> str:
        """The address of the store; never holds credentials."""
        return self._shown("")

    def contains(self, uri: str) -> bool:
        """Whether an address is this store or lies inside it, through symbolic links as well."""
        if self.is_local != ("://" not in uri):
            return False
        inner, outer = (os.path.realpath(place) if self.is_local else place for place in (uri, self.uri))
        return f"{inner}/".startswith(f"{outer.rstrip('/')}/")

    def beside(self, uri: str) -> Store:
        """Another store, reached in the same way."""
        return Store(uri, self._options)

    def address(self, name: str) -> str:
        """The address of a file, with what another process needs to reach it (see `dpdist.storage.s3.address`)."""
        _check_name(name)
        return address(self._shown(name), self._options)

    def __repr__(self) -> str:
        return f"Store({self.uri!r})"

    def __truediv__(self, name: str) -> Store:
        _check_name(name)
        return self._inside(posixpath.join(self._inner, name))

    def __reduce__(self) -> tuple[Callable[..., Store], tuple[Any, ...]]:
        secret = sorted(_secrets(self._options))
        if secret:
            raise SpecError(
                f"the storage options hold credentials ({', '.join(secret)}), which never travel to workers: "
                "give them through the environment (AWS_ACCESS_KEY_ID, ...) or a profile"
            )
        root = self._root if self.is_local else f"s3://{self._root}"
        return _restore, (root, self._options, self._parents, self._inner)

    def exists(self, name: str) -> bool:
        """Whether a file of this name is stored. Raises DataNotFound: there is no access to it; StorageUnavailable: the
        storage does not answer.
        """
        path = self._path(name)
        with self._reading(name):
            return self._has(path)

    def sizes(self, *, hidden: bool = False) -> dict[str, int]:
        """Names of all files below the store and their sizes in bytes, sorted by name.

        Hidden files are left out, unless `hidden` asks for them and for links to folders. Raises as `exists`.
        """
        top = self._path("")
        with self._reading(""):
            if self.is_local:
                found = dict(local.sizes(top, links=hidden))
            else:
                try:
                    found = {path: int(info["size"]) for path, info in self._fs.find(top, detail=True).items()}
                except FileNotFoundError:
                    found = {}
        sizes = {posixpath.relpath(path, top): size for path, size in found.items()}
        return {name: sizes[name] for name in sorted(sizes) if hidden or not any(p[0] == "." for p in name.split("/"))}

    def names(self) -> tuple[str, ...]:
        """Names of all files below the store, sorted; see `sizes`."""
        return tuple(self.sizes())

    def read_bytes(self, name: str, *, most: int | None = None) -> bytes:
        """The content of a file, by one GET; with `most` only if it is not longer, which is found out before.
        Raises DataNotFound: there is no such file, no access to it, or it is something else, such as a pipe;
        VerificationFailed: it is longer than `most`; StorageUnavailable: the storage does not answer.
        """
        path = self._path(name)
        with self._reading(name):
            if self.is_local:
                return local.read(path, self._shown(name), most)
            if most is not None:
                local.require_short(self._shown(name), self._fs.size(path), most)
            content: bytes = self._fs.cat_file(path, max_concurrency=1)
        return content

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write a file, or replace it, in one step: by rename once the bytes are on the disk, or by a single PUT.
        Raises OutputUnwritable: the place does not exist or cannot be written; OutOfDisk; StorageUnavailable: the
        storage does not answer, and the file may or may not have been written.
        """
        path = self._path(name)
        with self._writing(name):
            self._put(path, data, exclusive=False)

    def write_exclusive(self, name: str, data: bytes) -> bytes:
        """Store a file once, and return what a reader finds: this content or an earlier one.

        Locally the file system decides between writers (a hard link to a finished file): one wins. On S3 this looks for
        an earlier content and then sends a conditional PUT. Where a server ignores the condition, two writers at the
        same instant may both write; the later content stays, and it is complete. This suffices here: the writers of one
        attempt store the same bytes, a pure function of key and input, and of two attempts the ledger lets one commit.
        Raises as `write_bytes`.
        """
        path = self._path(name)
        with self._writing(name):
            if not self._has(path):
                self._put(path, data, exclusive=True)
        return self.read_bytes(name)

    def delete(self, name: str) -> None:
        """Delete a file; nothing happens if none exists. Raises OutputUnwritable: it cannot be deleted;
        StorageUnavailable: the storage does not answer.
        """
        path = self._path(name)
        with self._writing(name), suppress(FileNotFoundError, NotADirectoryError):
            self._fs.rm_file(path)

    def check_writable(self) -> None:
        """Write and delete a small hidden file, to find an unwritable place before anything is charged.

        Locally the file is written exclusively, which needs hard links. Raises as `write_bytes`.
        """
        path = f"{self._path('')}/{local.PROBE}{uuid.uuid4().hex}"
        with self._writing(""):
            self._put(path, b"dpdist", exclusive=self.is_local)
            with suppress(FileNotFoundError):  # another run has swept it
                self._fs.rm_file(path)

    def make_private(self) -> None:
        """Make the folder of a local store, for its owner alone; nothing happens if it is there, or on S3. Raises
        OutputUnwritable or OutOfDisk as `write_bytes`.
        """
        if self.is_local:
            with self._writing(""):
                Path(self._path("")).mkdir(mode=0o700, exist_ok=True)

    def sweep(self) -> tuple[str, ...]:
        """Delete probes, and unfinished files of processes that no longer run; return their names. Raises
        OutputUnwritable: one cannot be deleted; else as `exists`.
        """
        top = self._path("")
        if not self.is_local:
            with self._reading(""):
                found = [path for path in self._fs.find(top, prefix=local.PROBE) if posixpath.dirname(path) == top]
            with self._writing(""):
                for path in found:
                    with suppress(FileNotFoundError):
                        self._fs.rm_file(path)
        else:
            with self._reading(""):
                files = [path for path, _ in local.sizes(top, links=True)]
            with self._writing(""):
                found = [path for path in files if local.sweep(path)]
        return tuple(posixpath.relpath(path, top) for path in found)

    def _inside(self, inner: str) -> Store:
        store = object.__new__(type(self))
        store.__dict__.update(self.__dict__, _inner=inner)
        return store

    def _path(self, name: str) -> str:
        if name:
            _check_name(name)
        path = posixpath.join(self._root, self._inner, name).rstrip("/")
        if self.is_local and not Path(path).resolve().is_relative_to(Path(self._root).resolve()):
            raise SpecError(f"{self._shown(name)} leaves the store through a symbolic link: remove the link")
        return path

    def _shown(self, name: str) -> str:
        path = posixpath.join(self._root, self._inner, name).rstrip("/")
        return path if self.is_local else f"s3://{path}"

    def _reading(self, name: str) -> AbstractContextManager[None]:
        return translated(self._shown(name), writing=False)

    def _writing(self, name: str) -> AbstractContextManager[None]:
        return translated(self._shown(name), writing=True)

    def _has(self, path: str) -> bool:
        """Whether there is a file at a full path: one request, and no listing."""
        try:
            if self.is_local:
                return stat.S_ISREG(os.stat(path).st_mode)
            self._fs.metadata(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _put(self, path: str, data: bytes, *, exclusive: bool) -> None:
        """Write a whole file; if `exclusive`, leave one that is there as it is."""
        if self.is_local:
            self._make_folder(Path(path).parent)
            local.write(path, data, exclusive=exclusive)
            return
        mode = "create" if exclusive else "overwrite"
        # a bucket with object lock takes no content without its digest, and every server knows this one
        digest = b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        options = {"chunksize": _SINGLE_PUT, "ContentMD5": digest}
        try:
            self._fs.pipe_file(path, data, mode=mode, **options)
        except OSError as error:
            taken = isinstance(error, FileExistsError) or s3_code(error) in _TAKEN
            if not exclusive or not (taken or s3_code(error) in ("NotImplemented", "501")):
                raise
            if not taken:  # a server without conditional PUT
                self._fs.pipe_file(path, data, **options)

    def _make_folder(self, folder: Path) -> None:
        if folder.is_dir():
            return
        root = Path(self._root)
        root.mkdir(parents=self._parents, exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        for above in (folder, *folder.parents):
            local.flush(above)
            if above == root.parent:
                return


def _restore(root: str, options: Mapping[str, Any], parents: bool, inner: str) -> Store:
    store = Store(root, options)._inside(inner)
    store._parents = parents
    return store


def _check_name(name: str) -> None:
    if not all(_COMPONENT.fullmatch(component) for component in name.split("/")):
        raise SpecError(
            f"{name!r} is not a name in a store: expected components of letters, digits and . _ = - that do not "
            "start with a dot, with / between them"
        )


def _bucket_and_prefix(address: str) -> str:
    parts = address.rstrip("/").split("/")
    if "@" in parts[0] or not set(address).isdisjoint("?#"):
        raise SpecError(
            "an S3 address holds a bucket and a prefix, no credentials and no parameters: give credentials "
            "through the environment (AWS_ACCESS_KEY_ID, ...) or a profile"
        )
    if any(part in ("", ".", "..") or not part.isprintable() for part in parts):
        raise SpecError("expected an address of the form s3://bucket/prefix, without dotted or empty components")
    return "/".join(parts)


def _secrets(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _secrets(value)
        elif name in _SECRETS and value is not None:
            yield name


class MemoryStore(Store):
    """A store in the memory of this process, for releases that nobody publishes, such as those of an audit."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._options, self._root, self._inner, self._parents = {}, "memory", "", False
        self.is_local = False

    def __reduce__(self) -> NoReturn:
        raise TypeError("a store in memory belongs to one process and is never pickled")

    def sizes(self, *, hidden: bool = False) -> dict[str, int]:
        """Names of all files below the store and their sizes in bytes, sorted by name."""
        top = f"{self._path('')}/"
        return {path.removeprefix(top): len(self._files[path]) for path in sorted(self._files) if path.startswith(top)}

    def read_bytes(self, name: str, *, most: int | None = None) -> bytes:
        """The content of a file. Raises DataNotFound: there is no such file."""
        try:
            return self._files[self._path(name)]
        except KeyError:
            raise DataNotFound(f"{self._shown(name)} does not exist") from None

    def delete(self, name: str) -> None:
        """Delete a file; nothing happens if none exists."""
        self._files.pop(self._path(name), None)

    def check_writable(self) -> None:
        """It always is."""

    def _shown(self, name: str) -> str:
        return self._path(name)

    def _has(self, path: str) -> bool:
        return path in self._files

    def _put(self, path: str, data: bytes, *, exclusive: bool) -> None:
        if not exclusive or path not in self._files:
            self._files[path] = data
