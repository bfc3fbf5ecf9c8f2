"""The families of releases, by the `kind` of their specs: how a spec is read, planned and run.

A family is a folder: `spec` holds its settings, `plan.plan` makes its plan, `release.STEPS` are its steps. The class
of its spec and its folder are one line in `FAMILIES`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, TypeAdapter

from dpdist.errors import SpecError
from dpdist.families.deniability.spec import PlausibleDeniabilitySpec
from dpdist.families.histogram.spec import HistogramSpec
from dpdist.families.mixing.spec import MixingSpec
from dpdist.families.prediction.spec import TwoStageSpec
from dpdist.schema.schema import Schema, load_yaml
from dpdist.spec import ReleaseSpec, override, validated

if TYPE_CHECKING:
    from dpdist.families.attempt import Context
    from dpdist.families.plan import Plan

FAMILIES: dict[str, tuple[type[ReleaseSpec], str]] = {
    "plausible-deniability": (PlausibleDeniabilitySpec, "dpdist.families.deniability"),
    "mixing": (MixingSpec, "dpdist.families.mixing"),
    "histogram": (HistogramSpec, "dpdist.families.histogram"),
    "two-stage": (TwoStageSpec, "dpdist.families.prediction"),
}
"""Class of the spec and folder of the family, by kind."""


def make_plan(spec: ReleaseSpec) -> Plan:
    """Plan a release, whatever its family.

    Raises
    ------
    SpecError
        Settings contradict each other.
    AccountingError
        No valid guarantee at these parameters.
    GuaranteeRefused
        The guarantee would say nothing, and was not asked for by name.
    """
    plan: Plan = import_module(f"{FAMILIES[spec.kind][1]}.plan").plan(spec)
    return plan


def steps_of(spec: ReleaseSpec) -> Mapping[str, Callable[[Context], None]]:
    """The steps that compute the parts of a release, by name, in order."""
    steps: Mapping[str, Callable[[Context], None]] = import_module(f"{FAMILIES[spec.kind][1]}.release").STEPS
    return steps


def load_spec(path: str | Path, overrides: Mapping[str, Any] | None = None) -> ReleaseSpec:
    """Read a spec file, apply overrides, resolve its schema and validate it.

    Parameters
    ----------
    path : str or Path
        The YAML file.
    overrides : mapping of str to object, optional
        Values by dotted path, such as ``{"synthesis.records": 1000}``.

    Raises
    ------
    SpecError
        The file cannot be read, is not YAML or is not a valid spec; the message names each setting.
    """
    tree = load_yaml(path)
    if not isinstance(tree, dict):
        raise SpecError(f"{path} is not a spec: expected a mapping with `kind`, `name`, `data` ...")
    return build_spec(override(tree, overrides or {}), base=Path(path).parent, source=str(path))


def build_spec(tree: Mapping[str, Any], *, base: Path | None = None, source: str = "the spec") -> ReleaseSpec:
    """Validate a spec given as a mapping; a schema given by path is read from `base`.

    Raises
    ------
    SpecError
        The mapping is not a valid spec, or the schema's path leaves the folder of the spec.
    """
    tree = dict(tree)
    kind = tree.get("kind")
    if kind not in FAMILIES:
        raise SpecError(f"{source}: `kind` is {kind!r}; expected one of {', '.join(FAMILIES)}")
    schema = tree.get("schema")
    if isinstance(schema, str):
        inside = PurePosixPath(schema)
        if base is None or inside.is_absolute() or ".." in inside.parts:
            raise SpecError(f"{source}: `schema` is a path below the folder of the spec, without `..`")
        tree["schema"] = Schema.from_yaml(base / schema)
    return validated(FAMILIES[kind][0], tree, source)


def json_schema() -> dict[str, Any]:
    """JSON schema of a spec file of any kind (``schema`` may also be the path of a schema file)."""
    kinds = [spec for spec, _ in FAMILIES.values()]
    union: Any = Annotated[functools.reduce(operator.or_, kinds), Field(discriminator="kind")]
    schema = TypeAdapter(union).json_schema(by_alias=True)
    specs = [schema["$defs"][spec.__name__] for spec in kinds]
    for spec in specs:
        spec["properties"]["schema"] = {
            "anyOf": [{"type": "string"}, spec["properties"]["schema"]],
            "description": "The schema, or the path of its file below the folder of the spec.",
        }
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema
