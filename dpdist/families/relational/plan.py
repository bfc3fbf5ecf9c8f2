"""The plan of a release of two linked tables: one Gaussian charge for both, and what each part of it costs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations
from typing import Any, ClassVar

from dpdist.data.count import pair_cells
from dpdist.families.base.calibration import GaussianPlan, with_draws
from dpdist.families.base.plan import EventPlan, Needs, core_seconds
from dpdist.families.relational.draw import SPARE, TILTS, tilted_by
from dpdist.families.relational.exchange import ROUNDS
from dpdist.families.relational.layout import Layout
from dpdist.families.relational.spec import MOST_MEMBERS, RelationalSpec
from dpdist.model.choices import Choices, choose, without_triples
from dpdist.model.draw import LARGEST_PART, parts_of
from dpdist.model.forecast import draws_at_most, one_way_deviation, refuse_undrawable
from dpdist.privacy.calibrate import ABOVE
from dpdist.privacy.event import Event
from dpdist.privacy.formatting import Fact, number_of
from dpdist.spec.attribute import Attribute
from dpdist.spec.schema import Schema
from dpdist.spec.validation import change
from dpdist.storage.stored import tree_of

GIVEN_WEIGHT = 0.1  # of pairs of given attributes: they only keep the fit of the others right
ALIKE_CELLS = 150  # at most, of a table of what tells the same of the next member that counts as others do
MEMBER_CELLS = 300_000  # of the members' model
MARGIN_SHARE = 0.5  # of mu^2, half for either table: the models' fit alone leaves the margins of members far off
PARENT_SHARE = 0.4  # of what is left, for the parents' model; the members' table has more columns


@dataclass(frozen=True, kw_only=True)
class RelationalPlan(EventPlan):
    """Everything a release of two linked tables will do and cost, before it reads a record."""

    noise_name: ClassVar[str] = "Deviation of a count of members"

    spec: RelationalSpec
    event: Event
    first: Choices  # first, others: of the models of the two tables, each with its mu for one row
    others: Choices
    margins: tuple[float, float]  # mu of the margins of each table, for one row

    @cached_property
    def released(self) -> Schema:
        """A row for each member: its parent's number, its place, the parent's attributes and its own."""
        spec, layout = self.spec, self.spec.layout
        number = Attribute(name=spec.parents.by, kind="number", bounds=(1, max(spec.parent.records, 2)))
        place = Attribute(name=spec.place_name, kind="integer", bounds=(1, layout.at_most))
        kept = [attribute for i, attribute in enumerate(spec.table.attributes) if i != layout.order]
        return Schema(attributes=(number, place, *kept), rules=spec.table.rules)

    @cached_property
    def parts(self) -> list[int]:
        """Parents of each part of the release."""
        rows = self.spec.output.rows_per_part // self.spec.records_of_a_unit
        return parts_of(self.spec.parent.records, min(rows, LARGEST_PART // (1 + SPARE)))

    @property
    def shares(self) -> tuple[float, float]:
        """Shares of mu^2 of the models of the two tables, for a whole parent; the margins have the rest."""
        rest = 1 - MARGIN_SHARE
        return rest * PARENT_SHARE, rest * (1 - PARENT_SHARE)

    def public_parameters(self) -> dict[str, Any]:
        """The public parameters, for the manifest."""
        first, others = self.shares
        layout = self.spec.layout
        return super().public_parameters() | {
            "parents": self.spec.parent.records,
            "members_at_most": layout.at_most,
            "margins": {"share": MARGIN_SHARE, "mu_of_a_row": list(self.margins)},
            "parents_table": {"columns": list(layout.first.names), "share": first, "choices": _json(self.first)},
            "members_table": {"columns": list(layout.others.names), "share": others, "choices": _json(self.others)},
        }

    def noise_at(self, at_most: int) -> float:
        """The deviation of the counts of one attribute of the members, measured twice."""
        if at_most < 2:
            return math.nan
        choices = plan(change(self.spec, {"unit.at_most": at_most})).others
        return one_way_deviation(choices, len(self.spec.layout.others.attributes))

    @property
    def deviations(self) -> tuple[float, float]:
        """Of a count of one attribute of the parents' and of the members' table."""
        layout = self.spec.layout
        return (
            one_way_deviation(self.first, len(layout.first.attributes)),
            one_way_deviation(self.others, len(layout.others.attributes)),
        )

    def errors(self) -> list[Fact]:
        """How far off counts of one attribute are."""
        parents, members = self.deviations
        text = f"counts of one attribute within about +-{parents:,.0f} parents, or +-{members:,.0f} members"
        return [Fact("Error", text, {"parents": parents, "members": members})]

    def bounds(self) -> list[Fact]:
        """What the bound on the members costs."""
        unit = self.spec.parents
        used = f"the first {unit.at_most} members of each {unit.name} (column {unit.by!r}) are used"
        within = range(2, MOST_MEMBERS + 1)
        return [self._bound("Unit", f"{used}, and none without an id", "unit", unit.at_most, within)]

    def details(self) -> list[Fact]:
        """What each table costs."""
        spec, layout = self.spec, self.spec.layout
        (first, others), c, unit = self.shares, layout.at_most, spec.parents.name
        rows, columns = len(layout.first.attributes), len(layout.others.attributes)
        sigmas = self.deviations
        parents = (
            f"{rows} columns: a {unit}, its composition, its first member; one row for each. {100 * first:.3g} % of "
            f"mu^2, about +-{sigmas[0]:,.0f} a count"
        )
        members = (
            f"{columns} columns: {len(layout.given)} that a member is drawn from, and {len(layout.members)} of its "
            f"own; up to {c - 1} rows of a {unit}, so noise is {c - 1} times as large. {100 * others:.3g} % of mu^2, "
            f"about +-{sigmas[1]:,.0f} a count"
        )
        margins = (
            f"tables of one and two of a {unit}'s {len(layout.parent)} attributes, and of the {len(layout.members)} of "
            f"its other members: {100 * MARGIN_SHARE:.3g} % of mu^2, half for either. {1 + SPARE} times as many are "
            "drawn, and exchanged until they have these margins"
        )
        records = (
            f"{number_of(spec.parent.records, unit)} with new numbers, and their members, in "
            f"{number_of(len(self.parts), 'part')}; any number costs the same"
        )
        return [
            Fact("Parents", parents, {"share": first, "deviation": sigmas[0]}),
            Fact("Members", members, {"share": others, "deviation": sigmas[1]}),
            Fact("Margins", margins, {"share": MARGIN_SHARE}),
            Fact("Records", records, {"parents": spec.parent.records, "parts": len(self.parts)}),
        ]

    def needs(self) -> Needs:
        """Memory, tasks and time, from public sizes only."""
        layout, found = self.spec.layout, super().needs()
        cells = sum(pair_cells(schema.cardinalities) for schema in (layout.first, layout.others))
        width = len(layout.first.attributes) + len(layout.others.attributes)
        rows = (1 + SPARE) * max(self.parts) * layout.at_most
        parents = self.spec.parent.records
        drawn = ((1 + SPARE) * parents + TILTS * tilted_by(parents)) * layout.at_most * width
        return replace(
            found,
            driver_bytes=8 * (12 * (self.first.cells + self.others.cells) + 6 * cells),
            task_bytes=max(found.task_bytes, 24 * width * rows + (1 << 28)),
            tasks=found.tasks + 2 * len(self.parts) + 1,
            seconds=core_seconds(read=2 * self.values, drawn=drawn),
        )


def _json(choices: Choices) -> dict[str, Any]:
    left_out = ("priorities", "prior_cells", "triples", "triple_tables", "triple_groups", "high", "high_picks")
    return {name: value for name, value in tree_of(choices).items() if name not in left_out}


def plan(spec: RelationalSpec) -> RelationalPlan:
    """Plan a release of two linked tables.

    A parent more changes one row of the first table and up to ``at_most - 1`` rows of the second. What is mu-GDP for a
    row is (c - 1) mu-GDP for c - 1 of them; the squares of both sum to that of the release.

    Raises SpecError: all pair tables do not fit a worker, or there are too many parts; AccountingError: no amount of
    noise meets the budget.
    """
    layout, privacy = spec.layout, spec.privacy
    tables = (layout.first.cardinalities, layout.others.cardinalities)
    for cards in tables:
        pair_cells(cards)  # refuses domains whose pairs do not fit a worker
    rest, last = 1 - MARGIN_SHARE, layout.at_most - 1
    shares = rest * PARENT_SHARE, rest * (1 - PARENT_SHARE)

    def chosen(mu: float) -> tuple[Choices, Choices]:
        return _choices(spec, mu * math.sqrt(shares[0]), mu * math.sqrt(shares[1]) / last)

    def draws(choices: tuple[Choices, Choices]) -> int:
        both = zip(choices, tables, strict=True)
        return sum(draws_at_most(one, cards) + pair_cells(cards) + sum(cards) for one, cards in both)

    calibrated = partial(
        GaussianPlan.of,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        label="all noisy tables, distances and picks of both tables",
    )
    whole = with_draws(
        lambda most: calibrated(draws=most), draws(_choices(spec, 1.0, 1.0)), lambda mu: draws(chosen(mu / ABOVE))
    )
    mu = whole.part(1)
    first, others = chosen(mu)
    refuse_undrawable(first, layout.first.cardinalities)
    refuse_undrawable(others, layout.others.cardinalities)
    margin = mu * math.sqrt(MARGIN_SHARE / 2)
    return RelationalPlan(
        spec=spec, event=whole.event, delta=privacy.delta, first=first, others=others, margins=(margin, margin / last)
    )


def _choices(spec: RelationalSpec, first_mu: float, others_mu: float) -> tuple[Choices, Choices]:
    layout = spec.layout
    parents = min(spec.parent.records, spec.data.minimum_records)
    found = choose(layout.first.cardinalities, records=parents, mu=first_mu)
    first = without_triples(found) if found.triple_tables else found
    members = max(spec.data.minimum_records - parents, 1)
    others = choose(layout.others.cardinalities, records=members, mu=others_mu, raking=False)
    cells = min(others.cells, MEMBER_CELLS)
    others = replace(others, cells=cells, priorities=tuple(_weights(layout)))
    return replace(first, balance=ROUNDS), replace(others, balance=ROUNDS)  # both say what they expect


def _weights(layout: Layout) -> Iterable[tuple[int, int, float]]:
    """Pairs of given attributes count little, but for an attribute of the first and of the previous member, and the
    place, which says whether there is a previous one: both tell the same of the next one. Only a small table does not
    take the room of others.
    """
    given = layout.given
    for i, j in combinations(range(len(given)), 2):
        name, other = given[i].name, given[j].name.removeprefix("previous ")
        alike = other != given[j].name and name in ("(place)", f"first {other}")
        if not alike or given[i].cardinality * given[j].cardinality > ALIKE_CELLS:
            yield i, j, GIVEN_WEIGHT
