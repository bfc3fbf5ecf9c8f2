"""The files of a release beside its parts: what was measured, the model, how records are drawn again."""

from __future__ import annotations

import hashlib

from pydantic import BaseModel, ConfigDict, Field

from dpdist.errors import VerificationFailed
from dpdist.limits import PART_BYTES
from dpdist.storage.store import Store

FILE_NAME = r"^_model/[0-9a-zA-Z]{1,8}/[a-z]+\.(json|parquet)$"


class FileRecord(BaseModel):
    """One file beside the parts, as the manifest lists it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=FILE_NAME, description="Name of the file, from the manifest's folder.")
    bytes: int = Field(ge=0, le=PART_BYTES, description="Size of the file.")
    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of the file, in hexadecimal.")


def write_file(store: Store, attempt: str, name: str, content: bytes) -> FileRecord:
    """Write a file of an attempt; the errors are those of `Store.write_bytes`."""
    record = FileRecord(
        name=f"_model/{attempt[:8]}/{name}", bytes=len(content), sha256=hashlib.sha256(content).hexdigest()
    )
    store.write_bytes(record.name, content)
    return record


def read_file(store: Store, record: FileRecord) -> bytes:
    """The content of a file, after its SHA-256 was found right. Raises VerificationFailed: it is not what the manifest
    says; DataNotFound, StorageUnavailable: as `Store.read_bytes`.
    """
    content = store.read_bytes(record.name, most=record.bytes)
    if hashlib.sha256(content).hexdigest() != record.sha256:
        raise VerificationFailed(
            f"{record.name} was changed, its SHA-256 is not that of the manifest: copy the release again from its "
            "publisher"
        )
    return content
