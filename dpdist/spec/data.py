"""The files of a table, and how they are read: what specs and contracts say in `data`."""

from __future__ import annotations

import codecs
import os
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Field, field_validator, model_validator

from dpdist.spec.strict import MOST_RECORDS, Section

PATH: Final = "a path from the folder of the file"
"""Marks a setting as a path, or several, relative to the folder of the file that says it."""


def path_settings(model: type[BaseModel]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The settings of a model that are paths: their names from the outside in, and their defaults."""
    for name, field in model.model_fields.items():
        key = field.alias or name
        if PATH in field.metadata:
            yield (key,), field.default
        for section in _sections(field.annotation):
            for names, default in path_settings(section):
                yield (key, *names), default


def _sections(annotation: Any) -> list[type[BaseModel]]:
    """The models among the types of a field."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return [part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)]


def from_folder(
    tree: Mapping[str, Any], model: type[BaseModel], base: Path, *, keep: Collection[str] = ()
) -> dict[str, Any]:
    """A spec or contract as a mapping, with its relative paths led from `base` to the working folder.

    Settings in `keep` stay as they are, by dotted path: those of the command line are relative to the working folder.
    """
    return with_paths(tree, model, lambda path: led(path, base), keep=keep)


def with_paths(
    tree: Mapping[str, Any], model: type[BaseModel], change: Callable[[str], str], *, keep: Collection[str] = ()
) -> dict[str, Any]:
    """A spec or contract as a mapping, with all its paths changed but those of the settings in `keep`."""
    found = dict(tree)
    for names, default in path_settings(model):
        section = _section(found, names[:-1])
        if section is None or any(f"{'.'.join(names)}.".startswith(f"{other}.") for other in keep):
            continue
        value = section.get(names[-1], default)
        if isinstance(value, str) and value:
            section[names[-1]] = change(value)
        elif isinstance(value, list | tuple) and value and all(isinstance(path, str) for path in value):
            section[names[-1]] = [change(path) for path in value]
    return found


def without_paths(tree: dict[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """A spec as a mapping, without the settings that say where its files are."""
    for names, _ in path_settings(model):
        section = _section(tree, names[:-1])
        if section is not None:
            section.pop(names[-1], None)
    return tree


def _section(tree: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any] | None:
    """A copy of a section, put into the tree in its place; None where the file has none."""
    for name in names:
        inner = tree.get(name)
        if not isinstance(inner, Mapping):
            return None
        tree[name] = dict(inner)
        tree = tree[name]
    return tree


def led(path: str, base: Path) -> str:
    """A path from the working folder, of one from `base`; addresses and absolute paths as they are."""
    if "://" in path or os.path.isabs(path) or path.startswith("~"):
        return path
    here = os.path.realpath(os.curdir)
    whole = os.path.normpath(os.path.join(os.path.realpath(base), path))
    inside = os.path.relpath(whole, here)
    return whole if inside.startswith(os.pardir) else inside


class StorageSpec(Section):
    """How to reach object storage; credentials come from the environment or the named profile."""

    endpoint_url: str | None = None
    """Endpoint of an S3-compatible store."""
    profile: str | None = None
    """Profile of the AWS configuration files."""
    region: str | None = None
    """Region name."""

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments for an fsspec S3 file system."""
        options: dict[str, Any] = {}
        if self.endpoint_url:
            options["endpoint_url"] = self.endpoint_url
        if self.profile:
            options["profile"] = self.profile
        if self.region:
            options["client_kwargs"] = {"region_name": self.region}
        return options


_ESCAPES = b"\\u000a\\n+AAo-~{"  # what some encodings read as other characters


class CsvSpec(Section):
    """How a CSV file is laid out."""

    header: bool = True
    """Whether the first row holds the column names."""
    columns: tuple[str, ...] | None = None
    """Column names of files without header."""
    delimiter: str = Field(default=",", min_length=1, max_length=1, description="Field separator.")
    encoding: str = "utf-8"
    """Encoding of the files: utf-8, utf-16, or one with a byte for each character, such as latin-1 or cp1252."""
    decimal: Literal[".", ","] = "."
    """The decimal sign of attributes of kind number."""
    thousands: Literal[".", ",", " ", "'", "_"] | None = None
    """What stands between groups of three digits of integers and numbers, such as the point of 1.234,56."""
    strip: bool = True
    """Whether blanks around fields are removed."""
    comment: str | None = None
    """Lines that start with this text are passed over."""
    skip_rows: int = Field(default=0, ge=0, le=1_000_000_000, description="Lines to skip at the top of each file.")

    @property
    def begins_with_header(self) -> bool:
        """Whether the line that is looked at when a file is opened is its first one: public, as it names the columns.
        Otherwise the spec chooses the line, which may be a record.
        """
        return self.header and not self.skip_rows and self.comment is None

    @property
    def of_bytes(self) -> str:
        """The encoding in which lines are cut: that of the files, but UTF-8 where they are written anew from UTF-16."""
        return "utf-8" if self.encoding.startswith("utf-16") else self.encoding

    @field_validator("encoding")
    @classmethod
    def _of_bytes(cls, name: str) -> str:
        """Refuse encodings whose lines cannot be cut at the byte of a line feed."""
        try:
            known = codecs.lookup(name).name
            if known in ("utf-16", "utf-16-le", "utf-16-be"):
                return known
            each = [bytes([byte]).decode(known, "replace") for byte in range(256)]
            each += [] if _ESCAPES.decode(known, "replace") == _ESCAPES.decode() else ["an escape"]
        except (LookupError, ValueError):
            known, each = "", []
        own = [text for text in each[128:] if text != "\ufffd"]
        if known != "utf-8" and (each[:128] != [chr(byte) for byte in range(128)] or len(own) < 64 or len(each) > 256):
            raise ValueError(
                f"{name!r} is no encoding with a byte for each character, nor utf-16: write the files in UTF-8"
            )
        return known

    @model_validator(mode="after")
    def _readable(self) -> CsvSpec:
        if not self.header and not self.columns:
            raise ValueError("a CSV without header needs `columns`")
        if self.decimal == self.thousands or self.delimiter in (
            self.decimal if self.decimal == "," else "",
            self.thousands,
        ):
            raise ValueError("`decimal`, `thousands` and `delimiter` are different signs")
        if self.delimiter in '"\r\n' or not self.delimiter.isascii():
            raise ValueError("`delimiter` must be one ASCII character, neither a quote nor a line break")
        if self.comment is not None and (not self.comment or "\n" in self.comment):
            raise ValueError("`comment` must be a text without line breaks, or absent")
        try:
            (self.comment or "").encode(self.encoding)
        except UnicodeEncodeError:
            raise ValueError(f"`comment` is no text in {self.encoding}") from None
        if self.columns is not None and len(set(self.columns)) != len(self.columns):
            raise ValueError("`columns` names a column twice")
        return self


Paths = Annotated[str, Field(min_length=1)] | Annotated[tuple[str, ...], Field(min_length=1)]
"""A file, a folder or a glob, or several."""


class PathsSpec(Section):
    """Where files are."""

    path: Annotated[Paths, PATH]
    """Files, folders or globs; local, from the folder of the spec, or s3://."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths as a tuple."""
        return (self.path,) if isinstance(self.path, str) else self.path


class ParentTable(PathsSpec):
    """A table with a row for each unit, whose attributes are those of all records with the same id; laid out alike."""

    attributes: tuple[str, ...] = Field(min_length=1, description="Attributes of the schema that it has.")


class FilesSpec(PathsSpec):
    """The files of a table."""

    format: Literal["parquet", "csv"] | None = None
    """Inferred from the name if absent."""
    csv: CsvSpec = CsvSpec()


class TableSpec(FilesSpec):
    """The files of a table of records, their store, and what is beside them."""

    extra_columns: Literal["refuse", "ignore"] = "refuse"
    """What to do with columns that the schema does not name."""
    storage: StorageSpec = StorageSpec()
    parent: ParentTable | None = None
    """Where attributes of the units are in a table of their own, with the ids of `unit`."""


class DataSpec(TableSpec):
    """The table a release reads."""

    minimum_records: int = Field(ge=1, le=MOST_RECORDS)
    """Declared public lower bound on the number of records; checked with a noisy count."""
