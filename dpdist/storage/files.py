"""Opening files through fsspec, and errors of storage as errors of dpdist: what failed, and what to do about it.

The errors of the operating system, of S3 servers and of the S3 libraries become errors of dpdist, each with its own
advice. The original text is dropped, because it may contain an address with credentials, or an access key.
"""

from __future__ import annotations

import errno
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import IO, Any, NamedTuple, TypeVar
from urllib.parse import unquote

from dpdist import errors
from dpdist.storage.s3 import ATTEMPTS, filesystem

T = TypeVar("T")

_PASSING = {errno.EBUSY, errno.EAGAIN, errno.ETIMEDOUT, getattr(errno, "EREMOTEIO", errno.ETIMEDOUT)}


class _Problem(NamedTuple):
    """What to raise, by direction, and what to do about it."""

    reading: type[errors.DpdistError]
    writing: type[errors.DpdistError]
    advice: str


def _refused(advice: str) -> _Problem:
    return _Problem(errors.DataNotFound, errors.OutputUnwritable, advice)


_FULL = _Problem(
    errors.OutOfDisk, errors.OutOfDisk, "no space is left: free some, or choose another place, then resume"
)
_QUOTA = _Problem(errors.OutOfDisk, errors.OutOfDisk, "the quota is used up: raise it or free some space, then resume")
_LIMIT = _Problem(
    errors.OutOfDisk, errors.OutOfDisk, "the file size limit of this process is too low: raise `ulimit -f`"
)
_BUSY = _Problem(
    errors.StorageUnavailable,
    errors.StorageUnavailable,
    f"the storage does not answer, or asks to slow down, after {ATTEMPTS} attempts: resume when it is back",
)
_UNREACHABLE = _Problem(
    errors.StorageUnavailable,
    errors.StorageUnavailable,
    "no server answers at the endpoint: check the endpoint and the network, then resume",
)
_TLS = _Problem(
    errors.StorageUnavailable,
    errors.StorageUnavailable,
    "no trusted TLS with the endpoint: its certificate must be for the name that is asked, of an authority that "
    "AWS_CA_BUNDLE names (the chart: trust.existingConfigMap); correct that or the endpoint, then resume",
)
_DENIED = _refused(
    "access is denied: check the secret key, and grant these credentials the right to list, read and write there"
)
_EXPIRED = _refused("the credentials have expired: renew them, then resume")
_UNKNOWN = _refused("the server does not accept the credentials: correct the access key and its secret")
_NO_CREDENTIALS = _refused(
    "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile"
)
_BUCKET = _refused("the bucket does not exist: create it, or correct its name and the endpoint")
_REGION = _refused("the bucket is in another region: set the region, or correct the endpoint")
_CLOCK = _refused("this machine's clock is off by more than the server accepts: set it")
_PERMISSION = _refused("permission is denied: change the owner or the mode of the folder, or choose another place")
_READ_ONLY = _refused("the file system is read-only: mount it for writing, or choose another place")
_ABSENT = _refused("it does not exist: check the path")
_NO_PARENT = _refused("the folder above it does not exist: create that, or correct the path")
_NOT_A_FOLDER = _refused("a part of the path is a file where a folder is needed, or the reverse: correct the path")
_NO_LINKS = _refused("the file system has no hard links, which exclusive files need: choose another place")
_TOO_LONG = _refused("the path is too long: choose a shorter one")

_BY_ERRNO = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _QUOTA,
    errno.EFBIG: _LIMIT,
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EROFS: _READ_ONLY,
    errno.ENOTDIR: _NOT_A_FOLDER,
    errno.EISDIR: _NOT_A_FOLDER,
    errno.EEXIST: _NOT_A_FOLDER,
    errno.ENAMETOOLONG: _TOO_LONG,
    errno.ENOTSUP: _NO_LINKS,
    errno.EMLINK: _NO_LINKS,
}
_BY_CODE = {  # error codes of S3 servers, then names of exceptions of botocore
    **dict.fromkeys(("NoSuchBucket", "InvalidBucketName", "ParamValidationError"), _BUCKET),
    **dict.fromkeys(("AccessDenied", "AllAccessDisabled", "AccountProblem", "403"), _DENIED),
    **dict.fromkeys(("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"), _EXPIRED),
    **dict.fromkeys(("SSOTokenLoadError", "UnauthorizedSSOTokenError", "TokenRetrievalError"), _EXPIRED),
    **dict.fromkeys(("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken"), _UNKNOWN),
    **dict.fromkeys(("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"), _NO_CREDENTIALS),
    **dict.fromkeys(("CredentialRetrievalError", "NoAuthTokenError"), _NO_CREDENTIALS),
    **dict.fromkeys(("PermanentRedirect", "AuthorizationHeaderMalformed", "301"), _REGION),
    "RequestTimeTooSkewed": _CLOCK,
    **dict.fromkeys(("QuotaExceeded", "InsufficientStorage", "XMinioStorageFull", "507"), _QUOTA),
    **dict.fromkeys(("SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout"), _BUSY),
    **dict.fromkeys(("Throttling", "RequestLimitExceeded", "429", "500", "502", "503", "504"), _BUSY),
    **dict.fromkeys(("ReadTimeoutError", "ConnectionClosedError", "ResponseStreamingError"), _BUSY),
    **dict.fromkeys(("ConnectTimeoutError", "EndpointConnectionError"), _UNREACHABLE),
    "SSLError": _TLS,
    **dict.fromkeys(("ProxyConnectionError", "InvalidEndpointURLError"), _UNREACHABLE),
    "400": _refused("the server refuses the request: renew the credentials, or correct the region"),
}


_BESIDE = re.compile(r"[._]|.*_\$folder\$$|(?i:README(\.(md|txt|rst|html))?$|.*\.(crc|md5|sha256)$)")
_HIVE_MISSING = "__HIVE_DEFAULT_PARTITION__"


def is_passed_over(parts: Sequence[str]) -> bool:
    """Whether a file below the folder of a table is no part of it, by the names of its folders and its own: hidden, a
    marker, a checksum, a note.
    """
    hidden = any(part.startswith((".", "_")) for part in parts[:-1])
    return hidden or (bool(parts) and _BESIDE.match(parts[-1]) is not None)


def columns_of_folders(place: str | PurePosixPath) -> tuple[tuple[str, str | None], ...]:
    """The columns that the folders of a file below its table give, as Hive names them (``state=01``); None is a missing
    value.
    """
    found = {}
    for part in PurePosixPath(place).parts[:-1]:
        column, is_one, value = part.partition("=")
        if column and is_one:
            found[unquote(column)] = None if value == _HIVE_MISSING else unquote(value)
    return tuple(found.items())


@contextmanager
def translated(where: str, *, writing: bool) -> Iterator[None]:
    """Raise errors of storage as errors of dpdist. `where` is the address for the message, without credentials. Raises
    DataNotFound, OutputUnwritable, OutOfDisk or StorageUnavailable by direction and cause: whether an output is written
    or something is read.
    """
    try:
        yield
    except errors.DpdistError:
        raise
    except Exception as error:
        problem = _problem(error, writing)
        if problem is None:
            raise
        kind = problem.writing if writing else problem.reading
        raise kind(f"cannot {'write' if writing else 'read'} {where}: {problem.advice}") from None


def resource_error(error: Exception, what: str) -> errors.DpdistError | None:
    """The error to raise where a storage does not answer or is full, so that the run can be resumed; else None."""
    problem = _problem(error, writing=True)
    if problem is None or not issubclass(problem.writing, errors.ResourceError):
        return None
    return problem.writing(f"{what}: {problem.advice}")


def s3_code(error: BaseException | None) -> str:
    """The error code of an S3 server behind an exception, else the empty text."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, Mapping):
            return str(response.get("Error", {}).get("Code", ""))
        error = error.__cause__
    return ""


def _problem(error: Exception, writing: bool) -> _Problem | None:
    """The entry for an exception, or None if it has nothing to do with storage."""
    for key in (s3_code(error), *(kind.__name__ for kind in type(error).__mro__)):
        if key in _BY_CODE:
            return _BY_CODE[key]
    if isinstance(error, TimeoutError | ConnectionError):
        return _BUSY
    if isinstance(error, FileNotFoundError):
        return _NO_PARENT if writing else _ABSENT
    if isinstance(error, PermissionError) and error.errno is None:
        return _DENIED
    if isinstance(error, OSError):
        name = errno.errorcode.get(error.errno or 0, s3_code(error) or "an input or output error")
        return _BY_ERRNO.get(error.errno or 0, _refused(f"the system reports {name}: check the device or the server"))
    return _UNREACHABLE if type(error).__module__.startswith(("botocore", "aiobotocore", "aiohttp")) else None


# --- files that are read ----------------------------------------------------------------------------------------------


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
    from fsspec.utils import infer_compression

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
    except errors.DpdistError:
        raise
    except Exception as error:
        known = _known(error, path)
        if known is None:
            raise
        raise known from None


def _known(error: Exception, path: str) -> errors.DpdistError | None:
    """The error of dpdist for an error of storage."""
    if isinstance(error, IndexError) and isinstance(error.__context__, TimeoutError):
        error = error.__context__  # s3fs looks into every failed read for a message, and a time-out has none
    problem = _TLS if type(error).__name__ == "SSLError" else _BY_CODE.get(s3_code(error))
    if problem is not None and problem is not _DENIED:
        return problem.reading(f"cannot read {path}: {problem.advice}")
    if isinstance(error, FileNotFoundError):
        return errors.DataNotFound(f"there is no file at {path}: check data.path")
    if isinstance(error, PermissionError):
        return errors.DataNotFound(
            f"access to {path} is denied: check the file's permissions, or the credentials and the bucket's policy"
        )
    if isinstance(error, ImportError):
        return errors.SpecError(f"reading {path} needs a package that is not installed: {error.name}")
    if isinstance(error, ValueError) and ("rotocol" in str(error) or "ompression" in str(error)):
        return errors.SpecError(f"{path} cannot be opened: {error}")
    if type(error).__module__.split(".")[0] in ("botocore", "aiobotocore", "aiohttp"):
        if "Credential" in type(error).__name__ or "Profile" in type(error).__name__:
            return errors.DataNotFound(f"no credentials for {path}: set the AWS_* variables or data.storage.profile")
        return _unavailable(path)
    if _passing(error):
        return _unavailable(path)
    if isinstance(error, OSError):  # the error's own text may be a server's, or a record's
        reason = os.strerror(error.errno) if error.errno else type(error).__name__
        return errors.UnreadableFile(f"{path} cannot be read: {reason}")
    return None


def _unavailable(path: str) -> errors.StorageUnavailable:
    return errors.StorageUnavailable(
        f"the storage of {path} does not answer: check data.storage.endpoint_url and the network, then resume"
    )


def _passing(error: Exception) -> bool:
    """Whether an error of s3fs or the system says that the storage does not answer for now."""
    return isinstance(error, ConnectionError | TimeoutError) or (isinstance(error, OSError) and error.errno in _PASSING)


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
    raise errors.UnreadableFile(message if isinstance(message, str) else message())
