"""Opening files through fsspec, and translating its errors into errors that say what to do."""

from __future__ import annotations

import errno
import lzma
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, TypeVar

from fsspec.utils import infer_compression

from dpdist.errors import DataNotFound, DpdistError, SpecError, StorageUnavailable, UnreadableFile
from dpdist.storage.failures import of_server, s3_code
from dpdist.storage.s3 import filesystem

T = TypeVar("T")

_BUSY = {errno.EBUSY, errno.EAGAIN, errno.ETIMEDOUT, getattr(errno, "EREMOTEIO", errno.ETIMEDOUT)}


def open_file(
    path: str, options: Mapping[str, Any], *, compression: str | None = None, size: int | None = None
) -> IO[bytes]:
    """Open a file for reading in large pieces (remote reads are not cached or read ahead).

    For a remote file of known `size`, no request asks for the size again.
    """
    fs, name = filesystem(path, options)
    if size is None or compression is not None or is_local(path):
        return fs.open(name, "rb", compression=compression, cache_type="none")  # type: ignore[no-any-return]
    file = fs.open(name, "rb", cache_type="none", size=size)
    file.details = {"name": name, "size": size, "type": "file"}
    return file  # type: ignore[no-any-return]


def compression_of(path: str) -> str | None:
    """Compression of a CSV file by its suffix, or None."""
    return infer_compression(path)  # type: ignore[no-any-return]


def is_local(path: str) -> bool:
    """Whether a path of a `FoundFile` is in the local file system."""
    return "://" not in path


def absolute(path: str) -> str:
    """A local path or pattern as it reads from any folder; other addresses as they are."""
    return path if "://" in path and not path.startswith(("file://", "local://")) else str(filesystem(path)[1])


@contextmanager
def storage_errors(path: str) -> Iterator[None]:
    """Raise the errors of storage as errors of dpdist, with advice: DataNotFound (no file, or no access),
    StorageUnavailable (no answer for now: the run can be resumed), UnreadableFile (the file exists and cannot be read),
    SpecError (there is no file system for the path).
    """
    try:
        yield
    except DpdistError:
        raise
    except Exception as error:
        known = _known(error, path)
        if known is None:
            raise
        raise known from None


def _known(error: Exception, path: str) -> DpdistError | None:
    """The error of dpdist for an error of storage."""
    if isinstance(error, IndexError) and isinstance(error.__context__, TimeoutError):
        error = error.__context__  # s3fs looks into every failed read for a message, and a time-out has none
    said = of_server(error)
    if said is not None:
        return said[0](f"cannot read {path}: {said[1]}")
    if isinstance(error, FileNotFoundError):
        return DataNotFound(f"there is no file at {path}: check data.path")
    if isinstance(error, PermissionError):
        return DataNotFound(
            f"access to {path} is denied: check the file's permissions, or the credentials and the bucket's policy"
        )
    if isinstance(error, ImportError):
        return SpecError(f"reading {path} needs a package that is not installed: {error.name}")
    if isinstance(error, ValueError) and ("rotocol" in str(error) or "ompression" in str(error)):
        return SpecError(f"{path} cannot be opened: {error}")
    if type(error).__module__.split(".")[0] in ("botocore", "aiobotocore", "aiohttp"):
        if "Credential" in type(error).__name__ or "Profile" in type(error).__name__:
            return DataNotFound(f"no credentials for {path}: set the AWS_* variables or data.storage.profile")
        return _unavailable(path)
    if _passing(error):
        return _unavailable(path)
    if isinstance(error, OSError):  # the error's own text may be a server's, or a record's
        reason = os.strerror(error.errno) if error.errno else type(error).__name__
        return UnreadableFile(f"{path} cannot be read: {reason}")
    return None


def _unavailable(path: str) -> StorageUnavailable:
    return StorageUnavailable(
        f"the storage of {path} does not answer: check data.storage.endpoint_url and the network, then resume"
    )


def _passing(error: Exception) -> bool:
    """Whether an error of s3fs or the system says that the storage does not answer for now."""
    return isinstance(error, ConnectionError | TimeoutError) or (isinstance(error, OSError) and error.errno in _BUSY)


def unless_damaged(action: Callable[[], T], message: str | Callable[[], str]) -> T:
    """Return ``action()``; if it fails because of the bytes of a file, raise UnreadableFile with `message`. The
    messages of parsers may quote a record, so they are neither shown nor chained.
    """
    import pyarrow as pa

    try:
        return action()
    except (FileNotFoundError, PermissionError, MemoryError):
        raise
    except (pa.ArrowException, OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        if _passing(error) or s3_code(error):
            raise
    raise UnreadableFile(message if isinstance(message, str) else message())
