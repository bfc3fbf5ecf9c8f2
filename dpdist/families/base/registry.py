"""The one registry of the families of releases, and how their specs are read and planned."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from datetime import date
from importlib.metadata import EntryPoint, EntryPoints, PackageNotFoundError, distribution, entry_points
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, TypeAdapter

from dpdist.errors import SpecError
from dpdist.families.base.family import Family, Stage
from dpdist.families.base.plan import Plan
from dpdist.spec.dates import dated
from dpdist.spec.paths import from_folder
from dpdist.spec.release import ReleaseSpec, override, validated
from dpdist.spec.schema import Schema
from dpdist.spec.strict_yaml import load_yaml

if TYPE_CHECKING:
    from dpdist.publish.manifest import Manifest

GROUP = "dpdist.families"
"""The group of entry points by which families are found."""


class Families(MutableMapping[str, Family[Any, Any]]):
    """The families by the `kind` of their specs: each is imported when it is first asked for.

    An installed distribution offers a family by an entry point of the group `GROUP`: its name is the kind, its object
    the `Family`. Iteration lists the kinds and imports nothing; those of dpdist come first, and no other distribution
    can take them. Raises SpecError: dpdist is not installed; a family cannot be imported, is of another kind, or is
    offered by two distributions.
    """

    def __init__(self) -> None:
        self._known: dict[str, Family[Any, Any]] = {}

    @functools.cached_property
    def _shipped(self) -> EntryPoints:
        """The entry points of dpdist: found at once, where finding all takes 10 to 20 ms."""
        try:
            shipped = distribution("dpdist").entry_points.select(group=GROUP)
        except PackageNotFoundError:
            raise SpecError(
                "dpdist is not installed, so no family is found: run `make setup` in its tree, or install it by pip"
            ) from None
        if not shipped:
            raise SpecError("the installation of dpdist is older than its code: run `make setup` again")
        return shipped

    @functools.cached_property
    def _installed(self) -> EntryPoints:
        """The entry points of all distributions."""
        return entry_points(group=GROUP)

    def __getitem__(self, kind: str) -> Family[Any, Any]:
        if kind not in self._known:
            offered = self._shipped.select(name=kind) or self._installed.select(name=kind)
            if not offered:
                raise KeyError(kind)
            self._known[kind] = _loaded(tuple(offered))
        return self._known[kind]

    def __setitem__(self, kind: str, family: Family[Any, Any]) -> None:
        self._known[kind] = family

    def __delitem__(self, kind: str) -> None:
        del self._known[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*sorted(self._shipped.names), *sorted(self._installed.names), *self._known)))

    def __len__(self) -> int:
        return len(list(iter(self)))


FAMILIES = Families()
"""The families of this process."""


def register(family: Family[Any, Any]) -> None:
    """Make a family known to this process alone. Raises ValueError: its kind is taken."""
    if family.kind in FAMILIES:
        raise ValueError(f"there is a family of kind {family.kind!r} already")
    FAMILIES[family.kind] = family


def _loaded(offered: Sequence[EntryPoint]) -> Family[Any, Any]:
    """The family of a kind, from the distributions that offer it. Raises SpecError."""
    kind, names = offered[0].name, [entry.dist.name if entry.dist else entry.value for entry in offered]
    if len(offered) > 1:
        raise SpecError(f"kind {kind!r} is offered by {' and '.join(sorted(names))}: uninstall all but one")
    try:
        family = offered[0].load()
    except (ImportError, AttributeError) as error:
        raise SpecError(f"kind {kind!r} of {names[0]} cannot be imported ({error}): install it again") from error
    if not isinstance(family, Family) or family.kind != kind:
        raise SpecError(f"kind {kind!r} of {names[0]}: {offered[0].value} is no `Family` of this kind")
    return family


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
    paths = schema["discriminator"]["mapping"].values()
    specs = [schema["$defs"][path.rpartition("/")[2]] for path in paths]
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
