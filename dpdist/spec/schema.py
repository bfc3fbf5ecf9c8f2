"""The public schema of a table: attribute names, domains, buckets and policies.

A schema is public. It never comes from the data: every value, bound and bucket is declared before a record is
read, so that none of them can carry information about a record.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from dpdist.errors import SpecError
from dpdist.privacy.formatting import Displayed, Fact
from dpdist.spec.attribute import Attribute
from dpdist.spec.rules import Rule, Rules, compiled
from dpdist.spec.strict import Frozen
from dpdist.spec.strict_yaml import load_yaml, write_yaml
from dpdist.spec.validation import validated

if TYPE_CHECKING:
    from dpdist.api.schemas import SchemaCheck


class About(Frozen):
    """What a table is about, for people and catalogues; every field is optional."""

    title: str | None = None
    """What it is called."""
    description: str | None = None
    """What it holds, in a paragraph."""
    publisher: str | None = None
    """Who publishes it."""
    contact: str | None = None
    """Where questions go."""
    licence: str | None = None
    """Its licence: a name such as CC-BY-4.0, or an address."""
    citation: str | None = None
    """How to cite it; by default publisher, title, year and release."""
    period: str | None = None
    """The time that it covers, such as 2024 or 2024-01-01/2024-12-31."""
    url: str | None = None
    """Its page."""


class Schema(Displayed, Frozen):
    """The attributes of a table, in the order of release."""

    attributes: tuple[Attribute, ...] = Field(min_length=1, description="The columns, in the order of release.")
    rules: tuple[Rule, ...] = ()
    """What no record can be, as the public knows. No record that a synthesis releases breaks a rule."""
    about: About | None = None
    """What the table is about: a release says so, too."""

    @model_validator(mode="after")
    def _unique(self) -> Schema:
        names = [a.name for a in self.attributes]
        if len(set(names)) != len(names):
            raise ValueError("attribute names must differ")
        self.forbidden  # noqa: B018  (validates the rules)
        return self

    @cached_property
    def forbidden(self) -> Rules:
        """What the rules forbid."""
        return compiled(self)

    @property
    def _heading(self) -> str:
        return f"Schema, attributes: {len(self.attributes)}, rules: {len(self.rules)}"

    def _facts(self) -> list[Fact]:
        return [*(Fact(a.name, a.explain()) for a in self.attributes), *(Fact("Rule", r.text) for r in self.rules)]

    @property
    def names(self) -> tuple[str, ...]:
        """Attribute names, in order."""
        return tuple(a.name for a in self.attributes)

    @property
    def continuous(self) -> tuple[str, ...]:
        """Names of the continuous attributes, which have no codes."""
        return tuple(a.name for a in self.attributes if a.is_continuous)

    @property
    def dropping(self) -> tuple[str, ...]:
        """Names of the attributes, and texts of the rules, with a policy that drops records."""
        names = (a.name for a in self.attributes if "drop" in (a.missing, a.out_of_domain))
        return (*names, *(rule.text for rule in self.rules if rule.broken == "drop"))

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """Number of codes of each attribute."""
        return tuple(a.cardinality for a in self.attributes)

    @property
    def level_maps(self) -> tuple[tuple[NDArray[np.uint32], ...], ...]:
        """The groups of each attribute's codes, from fine to coarse."""
        return tuple(a.level_maps for a in self.attributes)

    @property
    def bucket_counts(self) -> tuple[int, ...]:
        """Number of buckets of each attribute."""
        return tuple(a.bucket_count for a in self.attributes)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the canonical JSON of the schema, in hexadecimal."""
        text = json.dumps(self.model_dump(mode="json", exclude_defaults=True), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def check(self, table: Any, *, custodian: bool = False, **layout: Any) -> SchemaCheck:
        """Say whether a table fits the schema. Costs nothing.

        Parameters
        ----------
        table : path or table
            Paths, or a table in memory, as for `dpdist.release`.
        custodian : bool
            Whether you keep the table. Its records are read only then: what they say is private, and for you alone.
            Else only the names and types of columns and the formats of files are looked at, which are public.
        **layout
            `format`, `csv` and `storage` of files, as a spec has them in `data`.

        Returns
        -------
        SchemaCheck
        """
        module = import_module("dpdist.api.schemas")  # of a layer above this one, which has the tables
        found: SchemaCheck = module.check_schema(self, table, custodian=custodian, layout=layout)
        return found

    def save(self, path: str | Path) -> None:
        """Write the schema as a YAML file. Raises SpecError: it cannot be written."""
        text = write_yaml(self.model_dump(mode="json", exclude_defaults=True), flow=True)
        try:
            Path(path).write_text(text, encoding="utf-8")
        except OSError as error:
            raise SpecError(f"{path} cannot be written: {error.strerror}") from None

    @classmethod
    def from_yaml(cls, path: str | Path) -> Schema:
        """Read a schema file. Raises SpecError: the file is missing, is not YAML or does not describe a schema."""
        tree, names = load_yaml(path), [field.alias or name for name, field in cls.model_fields.items()]
        if not isinstance(tree, dict):
            raise SpecError(f"{path} is not a schema: expected a mapping with `attributes`")
        if not set(tree) & set(names):  # another file, whose content no message repeats
            raise SpecError(
                f"{path} is not a schema: expected the settings {', '.join(names)}, and it has none of them"
            )
        return validated(cls, tree, str(path), what="schema")
