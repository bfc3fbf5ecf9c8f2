"""Keys: how the key of an attempt is made, wrapped, handed to workers and destroyed.

Every attempt draws its noise from its own key, 32 bytes of operating-system entropy. At rest the key exists
only wrapped: AES-256-GCM under the *key-encryption key*, bound to the attempt's id, in the attempt's ledger row
and, for workers, in one small file next to the attempt's other files. Commit erases both (best effort: the bytes
are overwritten before they are deleted, but journals, snapshots and object versions of a storage system may keep
a wrapped copy; who must rule that out also destroys the key-encryption key).
"""

from __future__ import annotations

import base64
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from dpdist.errors import ContractBroken, KeyUnavailable
from dpdist.ledger.signing import FORMAT, KEY_BYTES, KeyEncryptionKey
from dpdist.privacy.noise import Noise
from dpdist.storage import local
from dpdist.storage.files import resource_error
from dpdist.storage.s3 import IMPATIENT, filesystem, is_s3, split_address

TEST_KEYS: Final = "DPDIST_TEST_KEYS"
"""Environment variable of an operator who tries things out: 1 admits fixed test keys under a contract."""

WITH_TEST_KEY: Final = " test key "
"""What stands in the hash of an attempt's spec before the digest of its fixed key."""

PUBLIC_INPUT: Final = " with "
"""What stands in it, last, before the digest of what the spec's own hash leaves out and a resume must keep."""

_CACHED_KEYS: Final = 8
_HEAD_BYTES: Final = 1024
_FIXED: Final = "fixed:"


def new_key() -> bytes:
    """Return a new attempt key: 32 bytes of operating-system entropy."""
    return os.urandom(KEY_BYTES)


def require_test_keys() -> None:
    """Refuse a fixed key where a contract protects the table. Raises ContractBroken."""
    if os.environ.get(TEST_KEYS) != "1":
        raise ContractBroken(
            "a test key hides nothing: who knows it computes the records' counts. A data set with a contract admits "
            f"none (for made-up tables, the operator sets {TEST_KEYS}=1)"
        )


@dataclass(frozen=True, repr=False)
class KeyRef:
    """Where a worker finds the wrapped key of an attempt. It holds no secret and may enter a task graph."""

    attempt: str  # the attempt's id
    uri: str  # of its key file; on S3 with endpoint, profile and region (`dpdist.storage.s3.address`)
    # the key-encryption key's file on the driver, used by processes of the same machine that have neither
    # ``DPDIST_KEK`` nor ``DPDIST_KEK_FILE``; empty when none exists
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
        """The digits of a fixed key: for keys that are public by design. Raises KeyUnavailable: it is the key of an
        attempt.
        """
        if not self.is_fixed:
            raise KeyUnavailable("the key of an attempt is secret: it has no public digits")
        return self.uri.removeprefix(_FIXED)

    def __repr__(self) -> str:
        uri = _FIXED + "<hidden>" if self.is_fixed else _shown(self.uri)
        return f"KeyRef(attempt={self.attempt!r}, uri={uri!r})"


def write_key_file(uri: str, *, attempt: str, wrapped: bytes, kek_file: str = "") -> KeyRef:
    """Store the wrapped key of an attempt for its workers; return the reference to it. Raises KeyUnavailable: the file
    cannot be written; StorageUnavailable, OutOfDisk: the storage does not answer or is full.
    """
    content = _beginning(attempt) + json.dumps(base64.b64encode(wrapped).decode()).encode() + b"}"
    what = f"the key file of attempt {attempt} cannot be written to {_shown(uri)}"
    with _translated(what, "check that the folder or bucket exists and may be written, then resume"):
        fs, path = filesystem(*split_address(uri))
        if _is_local(fs):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            local.write(path, content, exclusive=False, mode=0o600)
        else:
            fs.pipe_file(path, content)
    return KeyRef(attempt, uri, kek_file)


def _beginning(attempt: str) -> bytes:
    """How the key file of an attempt begins."""
    return json.dumps({"format": FORMAT, "attempt": attempt})[:-1].encode() + b', "wrapped": '


def _require_key_file(content: bytes, uri: str, attempt: str) -> None:
    """Refuse a file that is not the key file of an attempt, nor the beginning of it, nor an overwritten one."""
    known = _beginning(attempt)
    if not (content.startswith(known) or known.startswith(content) or not content.strip(b"\0")):
        raise KeyUnavailable(
            f"the file at {_shown(uri)} is not the key file of attempt {attempt}, which the ledger says: it is left "
            "as it is; check the ledger (dpdist ledger verify)"
        )


def erase_key_file(uri: str, *, attempt: str, patient: bool = True) -> bool:
    """Overwrite and delete the key file of an attempt and forget its key in this process; idempotent.

    `patient` asks a storage that does not answer again, as often as any request; else once.
    Raises KeyUnavailable: the file exists and cannot be deleted; StorageUnavailable: the storage does not answer.

    Returns
    -------
    bool
        Whether there was one.
    """
    forget_keys(attempt)
    where, options = split_address(uri)
    options |= {} if patient or not is_s3(uri) else {"config_kwargs": IMPATIENT}
    what = f"the key file of attempt {attempt} at {_shown(uri)} cannot be deleted"
    with (
        _translated(what, "delete it by hand, or repeat the commit once the storage answers"),
        suppress(FileNotFoundError),
    ):
        fs, path = filesystem(where, options)
        if _is_local(fs):
            # Overwrite and delete a file, and what a process that was killed while it wrote the file left beside it
            folder, name = os.path.split(path)
            found = [entry for entry in os.listdir(folder) if entry == name or entry.startswith(f".{name}.")]
            for entry in found:
                with open(os.path.join(folder, entry), "r+b") as file:
                    _require_key_file(file.read(_HEAD_BYTES), file.name, attempt)
                    file.seek(0)
                    file.write(bytes(os.fstat(file.fileno()).st_size))
                    os.fsync(file.fileno())
                os.unlink(os.path.join(folder, entry))
            return bool(found)
        fs.invalidate_cache(path)  # a stale listing must not hide the file
        _require_key_file(fs.cat_file(path, end=_HEAD_BYTES), uri, attempt)
        fs.pipe_file(path, bytes(fs.info(path)["size"]))
        fs.rm_file(path)
        return True
    return False


_cache: OrderedDict[str, Noise] = OrderedDict()
_cache_lock = threading.Lock()


def load_noise(ref: KeyRef) -> Noise:
    """Return the noise of an attempt, unwrapping its key once per process. Raises KeyUnavailable: the key file or the
    key-encryption key cannot be read, or they do not belong together; StorageUnavailable: the storage of the key file
    does not answer.
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
    with _translated(f"the key file of attempt {ref.attempt} at {_shown(ref.uri)} cannot be read"):
        try:
            fs, path = filesystem(*split_address(ref.uri))
            record = json.loads(fs.cat_file(path))
        except FileNotFoundError:
            raise KeyUnavailable(
                f"the key of attempt {ref.attempt} is not at {_shown(ref.uri)}: it is erased when the attempt is "
                "committed, void or replaced by a new attempt"
            ) from None
        if record["format"] != FORMAT or record["attempt"] != ref.attempt:
            raise KeyUnavailable(f"the file at {_shown(ref.uri)} is not the key file of attempt {ref.attempt}")
        return base64.b64decode(record["wrapped"], validate=True)


@contextmanager
def _translated(what: str, advice: str = "") -> Iterator[None]:
    """Raise the errors of a storage as KeyUnavailable; what passes, as an error that lets the run be resumed."""
    try:
        yield
    except KeyUnavailable:
        raise
    except Exception as error:  # every storage has its own
        if (passing := resource_error(error, what)) is not None:
            raise passing from None
        raise KeyUnavailable(f"{what} ({type(error).__name__}){advice and f': {advice}'}") from None


def _is_local(fs: Any) -> bool:
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(fs, LocalFileSystem)


def _shown(uri: str) -> str:
    """Return the address without credentials or parameters, for messages."""
    parts = urlsplit(uri)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
