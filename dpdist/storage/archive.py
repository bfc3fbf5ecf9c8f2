"""Arrays with a JSON header as one NumPy archive: how results of stages are stored."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpdist.errors import UnreadableFile

T = TypeVar("T")

_HEADER = "header"


def packed(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], *, compressed: bool = False) -> bytes:
    """The archive: equal contents give equal bytes. The header is what JSON can hold; its ``format`` names what is
    stored, and the version of it. Arrays have any names but ``header``.
    """
    buffer = io.BytesIO()
    save = np.savez_compressed if compressed else np.savez
    save(buffer, allow_pickle=False, **{_HEADER: np.frombuffer(json.dumps(header).encode(), np.uint8)}, **arrays)
    return buffer.getvalue()


def unpacked(
    content: bytes, build: Callable[[dict[str, Any], Mapping[str, NDArray[Any]]], T], *, format: str, what: str
) -> T:
    """Read what `packed` wrote, and `build` the result from header and arrays.

    Where that raises KeyError, TypeError or ValueError, the archive is damaged. `what` is stored, for the message.
    Raises UnreadableFile: the bytes are damaged or of another format.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            header = json.loads(file[_HEADER].tobytes())
            if header["format"] != format:
                raise ValueError("another format")
            return build(header, file)
    except (ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile, zipfile.LargeZipFile):
        raise UnreadableFile(f"stored {what} are damaged or of another version; learn them again") from None
