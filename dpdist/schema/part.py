"""Whether a schema is a part of another one: some of its attributes, as they are or with coarser public values.

A table that the policies of the whole schema admit is then admitted by those of the part, whatever its records are.
"""

from __future__ import annotations

import numpy as np

from dpdist.schema.schema import Attribute, Category, Schema


def departures(part: Schema, whole: Schema) -> list[str]:
    """What in a schema is no part of another one; empty where all of it is.

    Labels and buckets are free: they decide nothing about a table.
    """
    known = {attribute.name: attribute for attribute in whole.attributes}
    found = []
    for attribute in part.attributes:
        original = known.get(attribute.name)
        if original is None:
            found.append(f"attribute {attribute.name!r}: there is none")
        elif attribute != original and (why := _departure(attribute, original)):
            found.append(f"attribute {attribute.name!r}: {why}")
    return found


def _departure(part: Attribute, whole: Attribute) -> str | None:
    """Why an attribute is not a coarser one; None where it is."""
    if part.kind != whole.kind:
        return f"its kind is {whole.kind}"
    if part.missing != whole.missing or set(part.missing_values) != set(whole.missing_values):
        return "its policy for missing values is another one"
    if whole.bounds is not None:
        if part.bounds != whole.bounds:
            return "its bounds are other ones (coarser values are declared by `bins`)"
        if part.out_of_domain != whole.out_of_domain:
            return "its policy `out_of_domain` is another one"
        return None if _is_coarser(part, whole) else "its bins cut through bins that are declared"
    return _departure_of_values(part, whole)


def _is_coarser(part: Attribute, whole: Attribute) -> bool:
    if whole.is_continuous:
        return True
    return not part.is_continuous and bool(np.isin(part.bin_edges, whole.bin_edges).all())


def _departure_of_values(part: Attribute, whole: Attribute) -> str | None:
    if isinstance((part.values or ("",))[0], int) != isinstance((whole.values or ("",))[0], int):
        return "its values are integers in one and texts in the other"
    to_part, to_whole = _texts(part), _texts(whole)
    lost = [text for text in to_whole if text not in to_part]
    if lost:
        return "values are left out (merge them into others by `aliases`)"
    if any(to_part[text] != to_part[value] for text, value in to_whole.items()):
        return "other spellings of one value become different values"
    new = set(to_part) - set(to_whole)
    if new - set(map(str, part.values or ())):
        return "`aliases` name values that are not declared"
    if new and whole.out_of_domain != "refuse":  # a value of that name is outside the domain, and has a policy
        return "merged values get the name of one of them where `out_of_domain` is not refuse"
    expected = whole.out_of_domain
    if isinstance(expected, Category) and expected.category in to_part:
        expected = Category(category=to_part[expected.category])
    return None if part.out_of_domain == expected else "its policy `out_of_domain` is another one"


def _texts(attribute: Attribute) -> dict[str, str]:
    """The value of each text that has one."""
    aliases = {alias: str(value) for alias, value in attribute.aliases.items()}
    return aliases | {str(value): str(value) for value in attribute.values or ()}
