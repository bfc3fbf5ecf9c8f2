"""How results of stages are stored: a frozen dataclass as JSON or a NumPy archive, by the types of its fields."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import MappingProxyType, NoneType
from typing import Any, ClassVar, Self, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from dpdist.errors import UnreadableFile

_HEADER = "header"


class Stored:
    """A frozen dataclass that is computed once, stored under the name `FILE` in the work folder, and read back.

    Its fields are numbers, texts, bytes, None, arrays, other dataclasses, and tuples, lists and mappings of these. All
    types in it must be there at run time.
    """

    FILE: ClassVar[str]
    COMPRESSED: ClassVar[bool] = False

    def to_bytes(self) -> bytes:
        """JSON, or an archive of JSON and the arrays that it names. Equal results give equal bytes."""
        arrays: dict[str, NDArray[Any]] = {}
        header = json.dumps({"type": type(self).__name__, "value": tree_of(self, arrays)}).encode()
        if not arrays:
            return header
        buffer = io.BytesIO()
        save = np.savez_compressed if self.COMPRESSED else np.savez
        save(buffer, allow_pickle=False, **{_HEADER: np.frombuffer(header, np.uint8)}, **arrays)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read what `to_bytes` wrote. Raises UnreadableFile: the bytes are damaged, or of another type or version."""
        try:
            if content.startswith(b"{"):
                return cls._of(content, {})
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                return cls._of(arrays[_HEADER].tobytes(), arrays)
        except (ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile, zipfile.LargeZipFile):
            raise UnreadableFile(f"{cls.FILE} is damaged or of another version; begin a new attempt") from None

    @classmethod
    def _of(cls, content: bytes, arrays: Mapping[str, NDArray[Any]]) -> Self:
        header = json.loads(content)
        if header["type"] != cls.__name__:
            raise ValueError("another type")
        made: Self = value_of(cls, header["value"], arrays)
        return made


def tree_of(value: Any, arrays: dict[str, NDArray[Any]] | None = None) -> Any:
    """A value as JSON holds it; an array is added to `arrays`, and stands there by its name. Raises ValueError: there
    is an array, and no `arrays`.
    """
    if isinstance(value, np.ndarray):
        if arrays is None:
            raise ValueError("JSON alone holds no arrays")
        arrays[name := f"array_{len(arrays)}"] = value
        return name
    if isinstance(value, np.generic):
        return value.item()
    if is_dataclass(value):
        return {field.name: tree_of(getattr(value, field.name), arrays) for field in fields(value) if field.init}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: tree_of(item, arrays) for key, item in value.items()}
        return [[tree_of(key, arrays), tree_of(item, arrays)] for key, item in value.items()]
    if isinstance(value, tuple | list):
        return [tree_of(item, arrays) for item in value]
    return value.hex() if isinstance(value, bytes) else value


def value_of(kind: Any, tree: Any, arrays: Mapping[str, NDArray[Any]] = MappingProxyType({})) -> Any:
    """The value of a type that `tree_of` took apart; what the type does not describe stays as JSON holds it. Raises
    KeyError, TypeError or ValueError: it is not one of this type, as far as its shape shows.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if np.ndarray in (origin, get_origin(getattr(origin, "__value__", None))):  # NDArray: from NumPy 2.5 a type alias
        return arrays[tree]
    if is_dataclass(kind):
        names, hints = [field.name for field in fields(kind) if field.init], get_type_hints(kind)
        if set(tree) != set(names):
            raise ValueError("other fields")
        return kind(**{name: value_of(hints[name], tree[name], arrays) for name in names})  # type: ignore[operator]
    if NoneType in arguments:
        kind = next(one for one in arguments if one is not NoneType)
        return None if tree is None else value_of(kind, tree, arrays)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        items = tree.items() if isinstance(tree, dict) else tree
        return {value_of(arguments[0], key, arrays): value_of(arguments[1], item, arrays) for key, item in items}
    if origin is list or (origin is tuple and arguments[1:] == (Ellipsis,)):
        return origin(value_of(arguments[0], item, arrays) for item in tree)
    if origin is tuple:
        return tuple(value_of(one, item, arrays) for one, item in zip(arguments, tree, strict=True))
    return bytes.fromhex(tree) if kind is bytes else tree
