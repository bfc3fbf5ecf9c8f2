"""What evaluations and audits need to know of a release: how its rows are linked, and what an audit attacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpdist.errors import SpecError
from dpdist.families.base.family import LinkedRows
from dpdist.families.relational.spec import RelationalSpec
from dpdist.spec.attribute import Attribute
from dpdist.spec.groups import MAX_CARDINALITY
from dpdist.spec.reader import load_public
from dpdist.spec.schema import Schema

if TYPE_CHECKING:
    from dpdist.publish.manifest import Manifest
from dpdist.families.relational.plan import RelationalPlan
from dpdist.model.claims import model_claim
from dpdist.privacy import accountant
from dpdist.privacy.events import Gaussian
from dpdist.privacy.testing import Claim


def linked(manifest: Manifest, spec: RelationalSpec | None) -> LinkedRows:
    """How rows of this release are parents with members. The manifest does not say how the column that orders them was
    declared: without the spec it is read as integers. Raises SpecError: the spec is that of another release.
    """
    found = _respecified(manifest)
    if spec is not None:
        # The spec, whose schema says what orders the members; everything else is as in the manifest
        alike = spec.kind == found.kind and spec.members == found.members and spec.unit == found.unit
        order = found.members.order
        tables = [[a for a in one.table.attributes if a.name != order] for one in (spec, found)]
        if not alike or tables[0] != tables[1] or spec.parent_attributes != found.parent_attributes:
            raise SpecError("--spec: expected the spec of this release: its schema, unit, parent and members differ")
        found = spec
    layout, unit = found.layout, found.parents
    kinds = layout.kinds
    named = [] if kinds is None else [(n, kinds.attribute, m) for n, m in zip(kinds.names, kinds.masks, strict=False)]
    return LinkedRows(unit, layout.schema, layout.order, layout.parent, layout.members, tuple(named))


def _respecified(manifest: Manifest) -> RelationalSpec:
    settings = manifest.spec.get("members")
    name = settings.get("order") if isinstance(settings, dict) else None
    own = manifest.table.attributes[LinkedRows.ids :]
    if isinstance(name, str):
        bounds = (0, MAX_CARDINALITY - 1)
        own = (*own, Attribute(name=name, kind="integer", bounds=bounds, out_of_domain="clip"))
    table: Any = manifest.parameters["parents_table"]  # its columns: the parents' attributes, their size, and more
    attributes = table["columns"][: table["columns"].index("(size)")]
    schema = Schema(attributes=own, rules=manifest.table.rules)
    spec = load_public(manifest.spec, schema, {"parent.attributes": attributes})
    if not isinstance(spec, RelationalSpec):
        raise SpecError(f"the manifest is of kind {spec.kind}, and has no parents with members")
    return spec


def claims(plan: RelationalPlan) -> tuple[Claim, ...]:
    """Both models; each at its part of the budget."""
    layout, last = plan.spec.layout, plan.spec.records_of_a_unit - 1
    tables = ((layout.first, plan.first, 1), (layout.others, plan.others, last))
    found = []
    for schema, choices, copies in tables:
        epsilon = accountant.epsilon(Gaussian(1 / (choices.mu * copies)), delta=plan.delta)
        found.append(model_claim(schema, choices, epsilon=epsilon, delta=plan.delta, copies=copies))
    return tuple(found)
