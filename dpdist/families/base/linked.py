"""How the rows of a release are parents with members, for what compares it with two linked tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdist.privacy.arrays import Codes
from dpdist.spec.conditions import Mask
from dpdist.spec.schema import Attribute, Schema
from dpdist.spec.unit import UnitSpec


@dataclass(frozen=True, eq=False)
class LinkedRows:
    """Where the parents' and the members' attributes are."""

    unit: UnitSpec  # the parents: the column of their ids, and how many members of each are used
    read: Schema  # by which the joined real rows are read
    order: int | None  # the attribute of `read` that orders the members of a parent; it is not compared
    parent: tuple[int, ...]  # attributes of `read`
    members: tuple[int, ...]
    kinds: tuple[tuple[str, int, Mask], ...]  # of members: name, attribute of `read` and its codes of the kind

    ids = 2  # columns of a released row before its attributes: the parent's number and the member's place

    @property
    def schema(self) -> Schema:
        """Of the released rows, without number and place."""
        kept = tuple(attribute for i, attribute in enumerate(self.read.attributes) if i != self.order)
        return Schema(attributes=kept, rules=self.read.rules)

    @property
    def parents_schema(self) -> Schema:
        """Of a row for each parent: its attributes, the number of its members and of those of each kind."""
        most = self.unit.at_most
        size = Attribute(name="(members)", kind="integer", bounds=(1, most))
        kinds = [Attribute(name=f"(of {name})", kind="integer", bounds=(0, most)) for name, _, _ in self.kinds]
        return Schema(attributes=(*(self.read.attributes[i] for i in self.parent), size, *kinds))

    def place(self, attribute: int) -> int:
        """Where an attribute of `read` is in `schema`."""
        return attribute - (self.order is not None and attribute > self.order)

    def compared(self, codes: Codes) -> Codes:
        """Codes of `read` as codes of `schema`."""
        return [column for i, column in enumerate(codes) if i != self.order]

    def of_kinds(self, codes: Codes) -> list[np.ndarray]:
        """For each kind which rows, codes of `schema`, are of it."""
        return [mask[codes[self.place(attribute)]] for _, attribute, mask in self.kinds]
