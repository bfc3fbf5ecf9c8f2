"""The spec of a release of two linked tables: parents, such as households, and their members, such as persons."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from dpdist.errors import SpecError
from dpdist.families.relational.layout import Kinds, Layout
from dpdist.spec.conditions import parse_condition
from dpdist.spec.release import Delta, Epsilon, PrivacyLimit, ReleaseSpec
from dpdist.spec.strict import MOST_RECORDS, Section
from dpdist.spec.unit import UnitSpec

MOST_MEMBERS = 64
"""Members of a parent at most: persons are drawn one after another."""

MOST_KINDS = 4


class RelationalPrivacy(PrivacyLimit):
    """What the whole release may cost."""

    epsilon: Epsilon
    delta: Delta


class ParentSpec(Section):
    """The parents."""

    attributes: tuple[str, ...] = ()
    """Attributes of the schema that are the parent's; the others are the members'. Default: those of data.parent."""
    records: int = Field(ge=1, le=MOST_RECORDS)
    """Number of released parents, by default about the known number of the table."""


class MembersSpec(Section):
    """The members of a parent."""

    order: str | None = None
    """Ordered attribute by which the members of a parent follow one another; only the place of a member among those of
    its parent is released. Without it the order is a keyed one."""
    kinds: dict[str, str] = Field(default_factory=dict)
    """Names of kinds of members, and for each a condition on one attribute, the same for all, such as {children: AGEP <
    18}. They are counted by parent, and released parents have as many of each."""
    context: tuple[str, ...] | None = None
    """Attributes of the first member that the others depend on; default: all. An attribute with `buckets` counts by
    them."""
    previous: tuple[str, ...] = ()
    """Attributes of the previous member that a member also depends on; by `buckets`."""
    crossed: tuple[tuple[str, ...], ...] = ()
    """Sets of attributes of the parent and of the first member, and `order` for the place of a member, that a member
    depends on together: by each combination of their values."""


class RelationalSpec(ReleaseSpec):
    """Parents with their members, drawn from two models that were fitted to noisy tables."""

    papers: ClassVar[tuple[str, ...]] = (
        "McKenna, Miklau, Sheldon: Winning the NIST contest, JPC 11, 2021, doi:10.29012/jpc.778",
    )
    protects_units: ClassVar[bool] = True
    keeps_rules: ClassVar[bool] = True

    kind: Literal["relational"]
    privacy: RelationalPrivacy
    parent: ParentSpec
    members: MembersSpec = MembersSpec()

    @model_validator(mode="after")
    def _consistent(self) -> RelationalSpec:
        if self.unit is None or not 2 <= self.unit.at_most <= MOST_MEMBERS:
            raise ValueError(
                "unit: declare the column of the parents' ids and how many members of each are used, from 2 to "
                f"{MOST_MEMBERS}, such as {{by: household, at_most: 6}}"
            )
        if self.table.continuous:
            raise ValueError(f"attribute {self.table.continuous[0]!r} is continuous: declare `bins` for it")
        names, order = self.table.names, self.members.order
        named = {
            *self.parent_attributes,
            *(self.members.context or ()),
            *self.members.previous,
            *sum(self.members.crossed, ()),
        } | ({order} if order else set())
        for name in sorted(named - set(names)):
            raise ValueError(f"parent and members: no attribute is called {name!r}; name attributes of the schema")
        members = [name for name in names if name not in self.parent_attributes and name != order]
        if not self.parent_attributes:
            raise ValueError("parent.attributes: name the attributes of the parents, or their table (data.parent)")
        if not members or order in self.parent_attributes:
            raise ValueError("parent.attributes: leave attributes to the members, and `members.order`")
        for name in (*(self.members.context or ()), *self.members.previous):
            if name not in members:
                raise ValueError(f"members.context and members.previous: {name!r} is no attribute of the members")
        if order and (order in {names[i] for rule in self.table.forbidden for i in rule.attributes}):
            raise ValueError(f"schema.rules: a rule names {order!r}, which only orders the members: leave the rule out")
        if order and self.table.attributes[names.index(order)].kind not in ("integer", "ordinal"):
            raise ValueError(f"members.order: {order!r} is no integer or ordinal attribute")
        if {self.place_name, self.unit.by} & {*self.parent_attributes, *members}:
            raise ValueError(f"{self.unit.by!r} and {self.place_name!r} are columns of the release: rename attributes")
        if self.output.rows_per_part < 10 * self.unit.at_most:
            raise ValueError("output.rows_per_part: a part has room for ten parents at least")
        self.layout  # noqa: B018  (validates the kinds)
        return self

    @property
    def parents(self) -> UnitSpec:
        """What is protected: a parent with its members. Raises ValueError: no unit is declared, which no valid spec is
        without.
        """
        if self.unit is None:
            raise ValueError("unit: a relational spec declares its parents")
        return self.unit

    @property
    def protects_only_units(self) -> bool:
        """A member more exchanges the rows of all others, and of the parent."""
        return True

    @property
    def parent_attributes(self) -> tuple[str, ...]:
        """Names of the parents' attributes."""
        return self.parent.attributes or (self.data.parent.attributes if self.data.parent else ())

    @property
    def place_name(self) -> str:
        """Column of the place of a member among those of its parent."""
        return self.members.order or "member"

    @cached_property
    def layout(self) -> Layout:
        """The two tables."""
        names, members = self.table.names, self.members
        parent = tuple(names.index(name) for name in self.parent_attributes)
        order = None if members.order is None else names.index(members.order)
        own = tuple(i for i in range(len(names)) if i not in parent and i != order)
        context = own if members.context is None else tuple(names.index(name) for name in members.context)
        previous = tuple(names.index(name) for name in members.previous)
        crossed = tuple(tuple(names.index(name) for name in cross) for cross in members.crossed)
        bound, kinds = self.records_of_a_unit, self._kinds(own)
        return Layout(self.table, parent, own, context, previous, crossed, order, bound, kinds)

    def _kinds(self, own: tuple[int, ...]) -> Kinds | None:
        if not self.members.kinds:
            return None
        if len(self.members.kinds) > MOST_KINDS:
            raise ValueError(f"members.kinds: at most {MOST_KINDS}")
        found, attributes = [], set()
        for name, text in self.members.kinds.items():
            try:
                condition = parse_condition(text, self.table)
            except SpecError as error:
                raise ValueError(f"members.kinds.{name}: {error}") from None
            attributes |= set(condition.attributes)
            found.append(condition)
        if len(attributes) != 1 or not attributes <= set(own):
            raise ValueError("members.kinds: the conditions are about one attribute of the members, the same for all")
        (attribute,) = attributes
        size = self.table.attributes[attribute].cardinality
        return Kinds.of(tuple(self.members.kinds), attribute, [c.cells([attribute], [size]) for c in found])
