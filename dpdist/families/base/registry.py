"""The one registry of the families of releases, and how their specs are read and planned."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, TypeAdapter

from dpdist.errors import SpecError
from dpdist.families.base.family import Family, Plan, Stage, imported
from dpdist.schema.dates import dated
from dpdist.schema.paths import from_folder
from dpdist.schema.schema import Schema
from dpdist.schema.spec import ReleaseSpec, override, validated
from dpdist.schema.strict_yaml import load_yaml

if TYPE_CHECKING:
    from dpdist.publish.manifest import Manifest

FAMILIES: dict[str, Family[Any, Any]] = {}
"""The families by the `kind` of their specs."""


def register(family: Family[Any, Any]) -> None:
    """Make a family known: its specs can then be planned, released, evaluated and audited. Raises ValueError:
    its kind is taken.
    """
    if FAMILIES.setdefault(family.kind, family) is not family:
        raise ValueError(f"there is a family of kind {family.kind!r} already")


def _shipped(kind: str, folder: str, spec: str, **more: str) -> None:
    """Register a family of this package: its modules are imported when they are needed."""
    paths = {name: f"{name}:{name}" for name in ("plan", "stages", "claims")} | more
    members: dict[str, Any] = {name: imported(f"dpdist.families.{folder}.{path}") for name, path in paths.items()}
    register(Family(kind=kind, spec=f"dpdist.families.{folder}.spec:{spec}", **members))


_shipped(
    "plausible-deniability",
    "deniability",
    "PlausibleDeniabilitySpec",
    solve="solve:solve",
    shadow="shadow:shadow",
)
_shipped(
    "synthesis",
    "synthesis",
    "WholeSynthesisSpec",
    solve="accuracy:solve",
    public_tables="prior:prior_digest",
)
_shipped("relational", "relational", "RelationalSpec", linked="linked:linked")
_shipped("mixing", "mixing", "MixingSpec", solve="order:solve", as_released="plan:as_released")
_shipped("histogram", "histogram", "HistogramSpec", canaries="claims:canaries", truth="stages:truth")
_shipped("discovery", "discovery", "DiscoverySpec")
_shipped("two-stage", "prediction", "TwoStageSpec")


def family_of(spec: ReleaseSpec) -> Family[Any, Any]:
    """The family of a spec."""
    return FAMILIES[spec.kind]


def stages_of(plan: Plan) -> Sequence[Stage[Any, Any]]:
    """The stages of a planned release."""
    return family_of(plan.spec).stages(plan)


def make_plan(spec: ReleaseSpec) -> Plan:
    """Plan a release, whatever its family. Raises SpecError: settings contradict each other; AccountingError: no valid
    guarantee at these parameters; GuaranteeRefused: the guarantee would say nothing, and was not asked for by name.
    """
    plan: Plan = family_of(spec).plan(spec)
    plan.guarantees  # noqa: B018  (one that cannot be stated is refused here, and not when the release is published)
    return plan


def load_spec(path: str | Path, overrides: Mapping[str, Any] | None = None, *, day: date | None = None) -> ReleaseSpec:
    """Read a spec file, apply overrides, resolve its schema and validate it.

    Parameters
    ----------
    path : str or Path
        The YAML file.
    overrides : mapping of str to object, optional
        Values by dotted path, such as ``{"synthesis.records": 1000}``.
    day : date, optional
        The day of ``{date:…}`` where the spec sets none (`dated`).

    Raises
    ------
    SpecError
        The file cannot be read, is not YAML or is not a valid spec; the message names each setting.
    """
    tree = load_yaml(path)
    if not isinstance(tree, dict):
        raise SpecError(f"{path} is not a spec: expected a mapping with `kind`, `name`, `data` ...")
    return build_spec(tree, overrides, base=Path(path).parent, source=str(path), day=day)


def build_spec(
    tree: Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    base: Path | None = None,
    source: str = "the spec",
    day: date | None = None,
) -> ReleaseSpec:
    """Validate a spec given as a mapping, with values set by dotted path.

    Parameters
    ----------
    base : Path, optional
        What the relative paths of the mapping are from; those that are set are from the working folder.
    day : date, optional
        The day of names by date.

    Raises
    ------
    SpecError
        The mapping is not a valid spec, or the schema's path leaves the folder of the spec.
    """
    try:
        tree = dated(override({**tree}, overrides or {}), day=day)
    except SpecError as error:
        raise SpecError(f"{source}: {error}") from None
    kind = tree.get("kind")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise SpecError(f"{source}: `kind` is {kind!r}; expected one of {', '.join(FAMILIES)}")
    schema = tree.get("schema")
    if isinstance(schema, str):
        inside = PurePosixPath(schema)
        if base is None or inside.is_absolute() or ".." in inside.parts:
            raise SpecError(f"{source}: `schema` is a path below the folder of the spec, without `..`")
        tree["schema"] = Schema.from_yaml(base / schema)
    spec_class = FAMILIES[kind].spec_class
    if base is not None:
        tree = from_folder(tree, spec_class, base, keep=overrides or ())
    spec: ReleaseSpec = validated(spec_class, tree, source)
    return spec


def respecified(
    manifest: Manifest, *, schema: Schema | None = None, settings: Mapping[str, Any] | None = None
) -> ReleaseSpec:
    """The spec of a release as far as it is public; where its files are is not. Raises SpecError: this version does not
    know the kind, or the settings.

    `schema` is that of the table, where the released records have another one, and `settings` what the public part does
    not say, by dotted path.
    """
    public: dict[str, Any] = {name: dict(v) if isinstance(v, Mapping) else v for name, v in manifest.spec.items()}
    for section in ("data", "output"):
        public[section] = {**public.get(section, {}), "path": "unknown"}
    return build_spec({**public, "schema": schema or manifest.table}, settings, source="the manifest's spec")


def json_schema() -> dict[str, Any]:
    """JSON schema of a spec file of any kind (``schema`` may also be the path of a schema file)."""
    kinds = [family.spec_class for family in FAMILIES.values()]
    union: Any = Annotated[functools.reduce(operator.or_, kinds), Field(discriminator="kind")]
    schema = TypeAdapter(union).json_schema(by_alias=True)
    specs = [schema["$defs"][spec.__name__] for spec in kinds]
    for spec in specs:
        spec["properties"]["schema"] = {
            "anyOf": [{"type": "string"}, spec["properties"]["schema"]],
            "description": "The schema, or the path of its file below the folder of the spec.",
        }
        name = spec["properties"]["name"]
        spec["properties"]["name"] = {
            "anyOf": [{"type": "string", "pattern": name.pop("pattern")}, {"type": "string", "pattern": r"\{date:"}],
            **{key: value for key, value in name.items() if key != "type"},
        }
        spec["properties"]["date"] = {
            "type": "string",
            "format": "date",
            "description": "The day of `{date:%Y-%m}` in `name`, `output.path` and `data.path`; default: today (UTC).",
        }
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema
