"""Keys: how the key of an attempt is made, wrapped, handed to workers and destroyed.

Every attempt draws its noise from its own key, 32 bytes of operating-system entropy. At rest the key exists
only wrapped: AES-256-GCM under the *key-encryption key*, bound to the attempt's id, in the attempt's ledger row
and, for workers, in one small file next to the attempt's other files. Commit erases both (best effort: the bytes
are overwritten before they are deleted, but journals, snapshots and object versions of a storage system may keep
a wrapped copy; who must rule that out also destroys the key-encryption key).

The key-encryption key is the first of these that is set:

1. ``DPDIST_KEK``: 32 bytes in base64 (from a secret);
2. ``DPDIST_KEK_FILE``: a file of mode 0600 with that text (or 0440, of root and the process's own group, as Kubernetes
   mounts a secret);
3. the default of an embedded ledger: ``<SQLite file>.kek``, made on first use.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import json
import os
import stat
import tempfile
import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from dpdist.errors import KeyUnavailable
from dpdist.privacy.noise import Noise
from dpdist.storage.failures import resource_error
from dpdist.storage.s3 import IMPATIENT, filesystem, is_s3, split_address

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_FORMAT: Final = "dpdist attempt key 1"
_CACHED_KEYS: Final = 8
_FIXED: Final = "fixed:"
_UNFINISHED_KEK: Final = ".kek-"


def new_key() -> bytes:
    """Return a new attempt key: 32 bytes of operating-system entropy."""
    return os.urandom(KEY_BYTES)


@dataclass(frozen=True, eq=False)
class KeyEncryptionKey:
    """The secret that wraps attempt keys at rest.

    Parameters
    ----------
    secret : bytes
        32 bytes; hidden in ``repr``, refused by ``pickle``.
    source : str
        Where it was found, for messages.
    path : str
        The file it was read from, empty when it came from the environment.
    """

    secret: bytes = field(repr=False)
    source: str
    path: str = ""

    def __reduce__(self) -> str:
        raise TypeError("a key-encryption key is never pickled; every process finds it by itself")

    @classmethod
    def find(cls, default: str | Path | None = None, *, create: bool = False) -> KeyEncryptionKey:
        """Find the key-encryption key of this process.

        Parameters
        ----------
        default : path, optional
            The file used when neither ``DPDIST_KEK`` nor ``DPDIST_KEK_FILE`` is set.
        create : bool
            Make the default file when it is missing (exclusively, mode 0600).

        Raises
        ------
        KeyUnavailable
            None is configured, or it cannot be read, has the wrong length or a file others may read.
        """
        text = os.environ.get("DPDIST_KEK", "")
        if text:
            return cls(_decode(text, "the variable DPDIST_KEK"), "DPDIST_KEK")
        named = os.environ.get("DPDIST_KEK_FILE", "")
        if not named and not default:
            raise KeyUnavailable(
                "no key-encryption key: set DPDIST_KEK to 32 bytes in base64 (openssl rand -base64 32), "
                "or DPDIST_KEK_FILE to a file of mode 0600 that holds them"
            )
        path = Path(named or str(default)).absolute()
        if create and not named:
            _create_secret_file(path)
        return cls(_decode(_read_secret_file(path), f"the file {path}"), str(path), str(path))

    def wrap(self, key: bytes, *, attempt: str) -> bytes:
        """Return ``nonce | ciphertext | tag`` of `key` under AES-256-GCM, bound to the attempt's id."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + AESGCM(self.secret).encrypt(nonce, key, _context(attempt))

    def unwrap(self, wrapped: bytes, *, attempt: str) -> bytes:
        """Return the key that `wrap` was given.

        Raises
        ------
        KeyUnavailable
            The bytes are damaged, belong to another attempt or were wrapped by another key-encryption key.
        """
        try:
            return AESGCM(self.secret).decrypt(wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:], _context(attempt))
        except (InvalidTag, ValueError):
            raise KeyUnavailable(
                f"the key of attempt {attempt} does not open with the key-encryption key from {self.source}: "
                "give the one the attempt was reserved with, or ask for a new attempt (a new charge)"
            ) from None


@dataclass(frozen=True, repr=False)
class KeyRef:
    """Where a worker finds the wrapped key of an attempt. It holds no secret and may enter a task graph.

    Parameters
    ----------
    attempt : str
        The attempt's id.
    uri : str
        Address of the attempt's key file; on S3 with its endpoint, profile and region (see
        `dpdist.storage.s3.address`).
    kek_file : str
        The key-encryption key's file on the driver, used by processes of the same machine that have neither
        ``DPDIST_KEK`` nor ``DPDIST_KEK_FILE``; empty when there is none.
    """

    attempt: str
    uri: str
    kek_file: str = ""

    @classmethod
    def fixed(cls, key: str) -> KeyRef:
        """Return a reference that *is* the key: 64 hexadecimal digits. For tests only; nothing drawn is private."""
        try:
            if len(bytes.fromhex(key)) != KEY_BYTES:
                raise ValueError
        except ValueError:
            raise KeyUnavailable("a fixed test key is 64 hexadecimal digits (32 bytes)") from None
        return cls(attempt="fixed", uri=_FIXED + key.lower())

    @property
    def is_fixed(self) -> bool:
        """Whether this is a fixed test key: its release is not private."""
        return self.uri.startswith(_FIXED)

    @property
    def public_hex(self) -> str:
        """The digits of a fixed key: for keys that are public by design.

        Raises
        ------
        KeyUnavailable
            It is the key of an attempt.
        """
        if not self.is_fixed:
            raise KeyUnavailable("the key of an attempt is secret: it has no public digits")
        return self.uri.removeprefix(_FIXED)

    def __repr__(self) -> str:
        uri = _FIXED + "<hidden>" if self.is_fixed else _shown(self.uri)
        return f"KeyRef(attempt={self.attempt!r}, uri={uri!r})"


def write_key_file(uri: str, *, attempt: str, wrapped: bytes, kek_file: str = "") -> KeyRef:
    """Store the wrapped key of an attempt for its workers; return the reference to it.

    Raises
    ------
    KeyUnavailable
        The file cannot be written.
    StorageUnavailable, OutOfDisk
        The storage does not answer or is full.
    """
    record = {"format": _FORMAT, "attempt": attempt, "wrapped": base64.b64encode(wrapped).decode()}
    content = json.dumps(record).encode()
    try:
        fs, path = filesystem(*split_address(uri))
        if _is_local(fs):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            folder, name = os.path.split(path)
            handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{name}.")  # mode 0600
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        else:
            fs.pipe_file(path, content)
    except Exception as error:  # every storage has its own
        _raise_passing(error, f"the key file of attempt {attempt} cannot be written to {_shown(uri)}")
        raise KeyUnavailable(
            f"the key file of attempt {attempt} cannot be written to {_shown(uri)} ({type(error).__name__}): "
            "check that the folder or bucket exists and may be written, then resume"
        ) from None
    return KeyRef(attempt, uri, kek_file)


def erase_key_file(uri: str, *, attempt: str, patient: bool = True) -> bool:
    """Overwrite and delete the key file of an attempt and forget its key in this process; idempotent.

    `patient` asks a storage that does not answer again, as often as any request; else once.

    Returns
    -------
    bool
        Whether there was one.

    Raises
    ------
    KeyUnavailable
        The file exists and cannot be deleted.
    StorageUnavailable
        The storage does not answer.
    """
    forget_keys(attempt)
    try:
        where, options = split_address(uri)
        fs, path = filesystem(where, options | ({} if patient or not is_s3(uri) else {"config_kwargs": IMPATIENT}))
        if _is_local(fs):
            return _erase_local(path)
        fs.invalidate_cache(path)  # a stale listing must not hide the file
        fs.pipe_file(path, bytes(fs.info(path)["size"]))
        fs.rm_file(path)
    except FileNotFoundError:
        return False
    except Exception as error:  # every storage has its own
        _raise_passing(error, f"the key file of attempt {attempt} at {_shown(uri)} cannot be deleted")
        raise KeyUnavailable(
            f"the key file of attempt {attempt} at {_shown(uri)} cannot be deleted ({type(error).__name__}): "
            "delete it by hand, or repeat the commit once the storage answers"
        ) from None
    return True


def _erase_local(path: str) -> bool:
    """Overwrite and delete a file, and what a process that was killed while it wrote the file left beside it."""
    folder, name = os.path.split(path)
    found = [entry for entry in os.listdir(folder) if entry == name or entry.startswith(f".{name}.")]
    for entry in found:
        with open(os.path.join(folder, entry), "r+b") as file:
            file.write(bytes(os.fstat(file.fileno()).st_size))
            os.fsync(file.fileno())
        os.unlink(os.path.join(folder, entry))
    return bool(found)


_cache: OrderedDict[str, Noise] = OrderedDict()
_cache_lock = threading.Lock()


def load_noise(ref: KeyRef) -> Noise:
    """Return the noise of an attempt, unwrapping its key once per process.

    Raises
    ------
    KeyUnavailable
        The key file or the key-encryption key cannot be read, or they do not belong together.
    StorageUnavailable
        The storage of the key file does not answer.
    """
    if ref.is_fixed:
        return Noise(bytes.fromhex(ref.uri.removeprefix(_FIXED)))
    with _cache_lock:
        if ref.attempt in _cache:
            _cache.move_to_end(ref.attempt)
            return _cache[ref.attempt]
    wrapped = _read_key_file(ref)
    kek = KeyEncryptionKey.find(ref.kek_file or None)
    noise = Noise(kek.unwrap(wrapped, attempt=ref.attempt))
    with _cache_lock:
        _cache[ref.attempt] = noise
        while len(_cache) > _CACHED_KEYS:
            _cache.popitem(last=False)
    return noise


def forget_keys(attempt: str | None = None) -> None:
    """Drop the unwrapped key of one attempt, or of all, from this process's cache."""
    with _cache_lock:
        if attempt is None:
            _cache.clear()
        else:
            _cache.pop(attempt, None)


def _read_key_file(ref: KeyRef) -> bytes:
    try:
        fs, path = filesystem(*split_address(ref.uri))
        record = json.loads(fs.cat_file(path))
        if record["format"] != _FORMAT or record["attempt"] != ref.attempt:
            raise KeyUnavailable(f"the file at {_shown(ref.uri)} is not the key file of attempt {ref.attempt}")
        return base64.b64decode(record["wrapped"], validate=True)
    except FileNotFoundError:
        raise KeyUnavailable(
            f"the key of attempt {ref.attempt} is not at {_shown(ref.uri)}: it is erased when the attempt is "
            "committed, void or replaced by a new attempt"
        ) from None
    except KeyUnavailable:
        raise
    except Exception as error:
        _raise_passing(error, f"the key file of attempt {ref.attempt} at {_shown(ref.uri)} cannot be read")
        raise KeyUnavailable(
            f"the key file of attempt {ref.attempt} at {_shown(ref.uri)} cannot be read ({type(error).__name__})"
        ) from None


def _raise_passing(error: Exception, what: str) -> None:
    """Raise what passes, a storage that is away or full, as an error that lets the run be resumed."""
    if (passing := resource_error(error, what)) is not None:
        raise passing from None


def _context(attempt: str) -> bytes:
    return f"{_FORMAT} {attempt}".encode()


def _decode(text: str, where: str) -> bytes:
    try:
        secret = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if len(secret) != KEY_BYTES:
        raise KeyUnavailable(f"{where} must hold 32 bytes in base64 (openssl rand -base64 32)")
    return secret


def is_exposed(found: os.stat_result) -> bool:
    """Whether others may read or write the file of a secret.

    Its group may read it if it belongs to root and this process does not: so Kubernetes mounts a secret for a pod.
    """
    mode = stat.S_IMODE(found.st_mode)
    mounted = found.st_uid == 0 != os.geteuid() and not mode & 0o037
    return bool(mode & 0o077) and not mounted


def _read_secret_file(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            if is_exposed(found):
                raise KeyUnavailable(
                    f"the key-encryption key in {path} may be read or written by others (mode "
                    f"{stat.S_IMODE(found.st_mode):04o}): "
                    f"run chmod 600 {path}"
                )
            return file.read(4096).decode("ascii", errors="replace")
    except OSError as error:
        raise KeyUnavailable(
            f"the key-encryption key in {path} cannot be read ({error.strerror}): restore the file, or set "
            "DPDIST_KEK or DPDIST_KEK_FILE to the key that open attempts were reserved with"
        ) from None


def _create_secret_file(path: Path) -> None:
    """Make a key-encryption key that appears complete or not at all, whoever else does the same."""
    if path.exists():
        return
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=_UNFINISHED_KEK)  # mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.write(base64.b64encode(os.urandom(KEY_BYTES)) + b"\n")
                file.flush()
                os.fsync(file.fileno())
                with suppress(FileExistsError, FileNotFoundError):  # made, or made and swept, by another process
                    os.link(temporary, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
    except OSError as error:
        raise KeyUnavailable(
            f"the key-encryption key cannot be created at {path} ({error.strerror}): make the folder writable, or "
            "set DPDIST_KEK or DPDIST_KEK_FILE"
        ) from None


def sweep_key_encryption_key(path: Path) -> tuple[Path, ...]:
    """Delete what processes that were killed while they made a key-encryption key left beside it; return the paths.

    Such a file may be a second name of the key, which would survive the deletion of the first.
    """
    swept = []
    for left in path.parent.glob(f"{_UNFINISHED_KEK}*"):
        with suppress(OSError), open(left, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its process still runs
            left.unlink()
            swept.append(left)
    return tuple(swept)


def _is_local(fs: Any) -> bool:
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(fs, LocalFileSystem)


def _shown(uri: str) -> str:
    """Return the address without credentials or parameters, for messages."""
    parts = urlsplit(uri)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
