"""Opening files through fsspec, and turning what goes wrong there into errors that say what to do."""

from __future__ import annotations

import errno
import lzma
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, TypeVar

import pyarrow as pa
from fsspec.core import url_to_fs
from fsspec.utils import infer_compression

from dpdist.errors import DataNotFound, SpecError, StorageUnavailable, UnreadableFile

T = TypeVar("T")

_BUSY = {errno.EBUSY, errno.EAGAIN, errno.ETIMEDOUT, getattr(errno, "EREMOTEIO", errno.ETIMEDOUT)}


def open_file(path: str, options: Mapping[str, Any], *, compression: str | None = None) -> IO[bytes]:
    """Open a file for reading in large pieces (remote reads are not cached or read ahead)."""
    fs, name = open_filesystem(path, options)
    return fs.open(name, "rb", compression=compression, cache_type="none")  # type: ignore[no-any-return]


def compression_of(path: str) -> str | None:
    """Compression of a CSV file by its suffix, or None."""
    return infer_compression(path)  # type: ignore[no-any-return]


def open_filesystem(path: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """The fsspec file system of a path and the path in it; `options` go to remote file systems only."""
    remote = "://" in path and not path.startswith(("file://", "local://"))
    return url_to_fs(path, **(options if remote else {}))  # type: ignore[no-any-return]


def is_local(path: str) -> bool:
    """Whether a path of a `FoundFile` is in the local file system."""
    return "://" not in path


@contextmanager
def storage_errors(path: str) -> Iterator[None]:
    """Raise the errors of storage as errors of dpdist, with advice.

    Raises
    ------
    DataNotFound
        No file, or no access.
    StorageUnavailable
        No answer for now: the run can be resumed.
    UnreadableFile
        The file exists and cannot be read.
    SpecError
        There is no file system for the path.
    """
    try:
        yield
    except FileNotFoundError:
        raise DataNotFound(f"there is no file at {path}: check data.path") from None
    except PermissionError:
        raise DataNotFound(
            f"access to {path} is denied: check the file's permissions, or the credentials and the bucket's policy"
        ) from None
    except ImportError as error:
        raise SpecError(f"reading {path} needs a package that is not installed: {error.name}") from None
    except ValueError as error:
        if "rotocol" not in str(error) and "ompression" not in str(error):
            raise
        raise SpecError(f"{path} cannot be opened: {error}") from None
    except Exception as error:
        if type(error).__module__.split(".")[0] in ("botocore", "aiobotocore", "aiohttp"):
            if "Credential" in type(error).__name__:
                raise DataNotFound(
                    f"no credentials for {path}: set the AWS_* variables or data.storage.profile"
                ) from None
            raise _unavailable(path) from None
        if _passing(error):
            raise _unavailable(path) from None
        if isinstance(error, OSError):  # the error's own text may be a server's, or a record's
            reason = os.strerror(error.errno) if error.errno else type(error).__name__
            raise UnreadableFile(f"{path} cannot be read: {reason}") from None
        raise


def _unavailable(path: str) -> StorageUnavailable:
    return StorageUnavailable(
        f"the storage of {path} does not answer: check data.storage.endpoint_url and the network, then resume"
    )


def _passing(error: Exception) -> bool:
    """Whether a storage does not answer for now, as s3fs and the system say it."""
    return isinstance(error, ConnectionError | TimeoutError) or (isinstance(error, OSError) and error.errno in _BUSY)


def unless_damaged(action: Callable[[], T], message: str | Callable[[], str]) -> T:
    """Return ``action()``; where it fails for what the bytes of a file say, raise without that error's text.

    The texts of parsers may quote a record, so they are neither shown nor chained.

    Raises
    ------
    UnreadableFile
        With `message`.
    """
    try:
        return action()
    except (FileNotFoundError, PermissionError, MemoryError):
        raise
    except (pa.ArrowException, OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        if _passing(error):
            raise
    raise UnreadableFile(message if isinstance(message, str) else message())
