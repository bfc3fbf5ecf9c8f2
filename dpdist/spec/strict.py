"""Parts of specs and schemas: frozen models that take no unknown settings, and tell true from 1.

What is derived from fields, such as a cached property, belongs to the instance it was computed on. Copies and pickles
hold the fields alone, so nothing derived travels with other fields or from another machine.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import fields
from fractions import Fraction
from functools import cache, cached_property
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Self, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    model_validator,
)
from pydantic_core import CoreSchema

from dpdist.spec.strict_yaml import LONGEST_NUMBER

Value = Annotated[int | str, Field(union_mode="smart")]


class OwnFields:
    """Dataclass whose copies and pickles hold its fields alone."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: self.__dict__[field.name] for field in fields(self)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update({field.name: state[field.name] for field in fields(self)})


class StrictModel(BaseModel):
    """Part of a spec or schema: frozen, without unknown settings; true is no number, and no number is true.

    Mappings are in the order of their names, however they were written: fingerprints do not tell orders apart. The text
    below a field describes it, as in ``Field(description=...)``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ignored_types=(cached_property,), defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _truth_is_no_number(cls, values: Any) -> Any:
        for name, field in cls.model_fields.items() if isinstance(values, dict) else ():
            value = values.get(field.alias or name, values.get(name))
            kind: Any = field.annotation
            if kind is bool and isinstance(value, int | float | str) and not isinstance(value, bool):
                raise ValueError(f"{name}: expected true or false")
            if isinstance(value, str) and "_" in value and kinds_in(kind) & {int, float} and str not in kinds_in(kind):
                raise ValueError(f"{name}: expected a number, written without underscores")
            if not _admits_truth(kind) and _holds_truth(value, inside=not _has_sections(kind)):
                raise ValueError(
                    f"{name}: true or false where a number or a text is expected; quote it if it is a text"
                )
        return values

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, dict) and (names := list(map(str, value))) != sorted(names):
                object.__setattr__(self, name, dict(sorted(value.items(), key=lambda item: str(item[0]))))
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Describe each setting by the text that stands below it in its class."""
        tree = handler(core_schema)
        properties = handler.resolve_ref_schema(tree).get("properties", {})
        for name, text in _texts_below(cls).items():
            properties[cls.model_fields[name].alias or name].setdefault("description", text)
        return tree

    def _with_own_fields(self, state: dict[Any, Any]) -> dict[Any, Any]:
        held, names = state["__dict__"], type(self).model_fields
        return state | {"__dict__": {name: value for name, value in held.items() if name in names}}

    def __getstate__(self) -> dict[Any, Any]:
        return self._with_own_fields(super().__getstate__())

    def __setstate__(self, state: dict[Any, Any]) -> None:
        super().__setstate__(self._with_own_fields(state))

    def __copy__(self) -> Self:
        copied = type(self).__new__(type(self))
        copied.__setstate__(self.__getstate__())
        return copied

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        copied = type(self).__new__(type(self))
        copied.__setstate__(deepcopy(self.__getstate__(), memo))
        return copied

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with other values of some fields, which are validated."""
        copied = super().model_copy(deep=deep)
        if not update:
            return copied
        own = {name: getattr(copied, name) for name in copied.model_fields_set}
        return type(self).model_validate(own | dict(update), by_name=True)


def _texts_below(model: type[BaseModel]) -> dict[str, str]:
    """The texts below the fields of a model, by field; read from its source when a JSON schema is asked for."""
    bases = reversed([base for base in model.__mro__ if issubclass(base, StrictModel)])
    found = {name: text for base in bases for name, text in _texts_in(base.__module__).get(base.__name__, {}).items()}
    return {name: text for name, text in found.items() if name in model.model_fields}


@cache
def _texts_in(module: str) -> dict[str, dict[str, str]]:
    """The texts below the fields of the classes of a module, by class and field; none where it has no source."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, KeyError):
        return {}
    found: dict[str, dict[str, str]] = {}
    for definition in tree.body:
        for field, below in pairwise(getattr(definition, "body", ())):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(below, ast.Expr)
                and isinstance(definition, ast.ClassDef)
            ):
                text = " ".join(ast.literal_eval(below.value).split())
                found.setdefault(definition.name, {})[ast.unparse(field.target)] = text
    return found


def kinds_in(annotation: Any) -> set[Any]:
    """The types that an annotation is made of."""
    parts = get_args(annotation)
    return {annotation}.union(*map(kinds_in, parts)) if parts else {annotation}


@cache
def _admits_truth(annotation: Any) -> bool:
    """Whether a field of this annotation may hold true or false."""
    return bool(kinds_in(annotation) & {bool, True, False, Any})


@cache
def _has_sections(annotation: Any) -> bool:
    """Whether a field of this annotation may hold a section, which checks its own fields."""
    return any(isinstance(kind, type) and issubclass(kind, BaseModel) for kind in kinds_in(annotation))


def _holds_truth(value: object, *, inside: bool) -> bool:
    """Whether a value is true or false, or a list of such; with `inside` also a mapping to such."""
    if isinstance(value, dict):
        return inside and any(_holds_truth(item, inside=True) for item in value.values())
    if isinstance(value, list | tuple):
        return any(_holds_truth(item, inside=inside) for item in value)
    return isinstance(value, bool)


class Frozen(StrictModel):
    """Part of a schema, compared field by field."""

    def __eq__(self, other: object) -> bool:  # by field: cached arrays have no truth value
        return type(other) is type(self) and all(getattr(self, f) == getattr(other, f) for f in type(self).model_fields)

    def __hash__(self) -> int:
        return hash((type(self), self.model_dump_json()))


class Section(StrictModel):
    """Part of a spec or a contract."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)


_VAST = re.compile(r"[eE][-+]?0*[1-9][0-9]{3}")
"""An exponent of four digits: the exact number would fill the memory."""


def _exact(value: object) -> object:
    """A share or a budget as an exact rational: 0.1 means one tenth, not the nearest double."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Fraction):
        return value
    try:
        text = str(value)  # ValueError for thousands of digits
        if isinstance(value, str) and (
            not text.isascii() or "_" in text or len(text) > LONGEST_NUMBER or _VAST.search(text)
        ):
            raise ValueError
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise ValueError("expected a number such as 0.25 or a fraction such as 1/3") from None


Exact = Annotated[
    Fraction, BeforeValidator(_exact, json_schema_input_type=float | str), PlainSerializer(str, return_type=str)
]

MOST_RECORDS = 100_000_000_000
"""Largest number of records, of the table or of a release."""
