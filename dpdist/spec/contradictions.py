"""Whether rules contradict each other: a search for records that break none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpdist.spec.conditions import Mask, missing_text, texts_of

if TYPE_CHECKING:
    from dpdist.spec.rules import Forbidden, Rules
    from dpdist.spec.schema import Attribute, Schema

_MOST_STEPS = 100_000


def refuse_contradictions(rules: Rules, schema: Schema) -> None:
    """Refuse rules that leave no record at all, or none with some declared value. Raises ValueError: they do, or
    whether they do takes too many steps to find out.
    """
    search = _Search(rules)
    witnesses: list[dict[int, int]] = []
    for i in sorted(search.near):
        classes = search.classes[i]
        for label, code in zip(*np.unique(classes, return_index=True), strict=True):
            if any(classes[witness[i]] == label for witness in witnesses if i in witness):
                continue
            found = search.record({i: int(code)})
            if found is None:
                attribute, number = schema.attributes[i], int(np.count_nonzero(classes == label))
                more = f" (and {number - 1} more of its values)" if number > 1 else ""
                raise ValueError(
                    f"{', '.join(_conflict(rules, i, int(code)))}: no record can have {attribute.name} = "
                    f"{_text(attribute, int(code))}{more}: the rules contradict each other, or the value is not of the "
                    "domain: correct them, or take the value out"
                )
            witnesses.append(found)


def _conflict(rules: Rules, i: int, code: int) -> list[str]:
    """Places of rules that together leave no record with a code, none of which can be left out."""
    left = dict(enumerate(rules))
    for place in list(left):
        others = {k: rule for k, rule in left.items() if k != place}
        if _Search(tuple(others.values())).record({i: code}) is None:
            left = others
    return [f"rules.{place}" for place in left]


def _text(attribute: Attribute, code: int) -> str:
    """A code as people write it."""
    if code == attribute.missing_code:
        return str(missing_text(attribute))
    return (texts_of(attribute) or list(map(str, attribute.bin_edges.tolist())))[code]


def a_record(rules: Rules, attributes: int) -> list[int]:
    """Codes of one record that breaks no rule: attributes that no rule names have their first value."""
    found = _Search(rules).record({})
    assert found is not None  # `refuse_contradictions`
    return [found.get(i, 0) for i in range(attributes)]


class _Search:
    """Records that break no rule, by depth first; codes that no rule tells apart are one."""

    def __init__(self, rules: Rules) -> None:
        self.near: dict[int, list[Forbidden]] = {}  # the rules that name an attribute
        self.sizes: dict[int, int] = {}
        for rule in rules:
            for i, size in zip(rule.attributes, rule.shape, strict=True):
                self.near.setdefault(i, []).append(rule)
                self.sizes[i] = size
        self.classes = {i: self._classes(i) for i in self.near}

    def _classes(self, i: int) -> NDArray[np.intp]:
        """Class of each code of an attribute."""
        labels = []
        for rule in self.near[i]:
            if rule.table is None:
                rows = np.stack([box.get(i, np.ones(self.sizes[i], bool)) for box in rule.boxes], axis=1)
            else:
                rows = np.moveaxis(rule.table, rule.attributes.index(i), 0).reshape(self.sizes[i], -1)
            labels.append(np.unique(rows, axis=0, return_inverse=True)[1].ravel())
        return np.asarray(np.unique(np.stack(labels, axis=1), axis=0, return_inverse=True)[1].ravel())

    def record(self, given: dict[int, int]) -> dict[int, int] | None:
        """Codes of all attributes that rules name, with one that is given; None where there is no such record."""
        self._steps = 0
        if any(not self._allowed(i, {})[code] for i, code in given.items() if i in self.near):
            return None
        first = [i for i in self.near if i not in given and any(i in r.attributes for j in given for r in self._of(j))]
        return self._from(given, [*first, *sorted(i for i in self.near if i not in given and i not in first)])

    def _of(self, i: int) -> list[Forbidden]:
        return self.near.get(i, [])

    def _allowed(self, i: int, given: dict[int, int]) -> Mask:
        """The codes of an attribute that break none of the rules whose other attributes are given."""
        allowed = np.ones(self.sizes[i], bool)
        for rule in self.near[i]:
            if all(j == i or j in given for j in rule.attributes):
                codes = {j: np.full(len(allowed), given.get(j, 0)) for j in rule.attributes}
                allowed &= ~rule.broken_by(codes | {i: np.arange(len(allowed))})
        return allowed

    def _from(self, given: dict[int, int], left: list[int]) -> dict[int, int] | None:
        if not left:
            return given
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise ValueError("rules: whether they contradict each other takes too long to find out: write simpler ones")
        codes = np.flatnonzero(self._allowed(left[0], given))
        for place in np.unique(self.classes[left[0]][codes], return_index=True)[1].tolist():
            found = self._from(given | {left[0]: int(codes[place])}, left[1:])
            if found is not None:
                return found
        return None
