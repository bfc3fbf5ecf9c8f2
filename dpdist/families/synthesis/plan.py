"""The plan of a synthesis: its choices, its one Gaussian charge, and what it needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations
from textwrap import shorten
from typing import Any, ClassVar

from dpdist.accuracy.measured import deviations, draws
from dpdist.accuracy.sketched import draws as sketch_draws
from dpdist.accuracy.tables import triples_of
from dpdist.data.count import MAX_PAIR_CELLS, cells_of_pairs
from dpdist.errors import SpecError
from dpdist.families.base.calibration import GaussianPlan, with_draws
from dpdist.families.base.plan import EventPlan, Needs, core_seconds
from dpdist.families.synthesis.discovery import Discovery, lost_by
from dpdist.families.synthesis.regression_steps import MOST_VALUES, STEPS, draws_of, sensitivity
from dpdist.families.synthesis.series import facts_of
from dpdist.families.synthesis.spec import PRESUMED_VALUES, WholeSynthesisSpec
from dpdist.federated.plan import SummedPlan
from dpdist.model import choices as model_choices
from dpdist.model import forecast
from dpdist.model.choices import MOST_CODED_CELLS, Choices, choose, is_wide, reasons
from dpdist.model.draw import LARGEST_PART, MOST_REDRAWS, parts_of
from dpdist.model.forecast import Expected, draws_at_most
from dpdist.privacy.calibrate import ABOVE
from dpdist.privacy.event import Event
from dpdist.privacy.events import ApproximateDP, Composed
from dpdist.privacy.formatting import Fact, number_of
from dpdist.privacy.noise import SAMPLER_DELTA
from dpdist.spec.schema import Schema
from dpdist.spec.series import KEPT
from dpdist.spec.validation import change
from dpdist.storage.stored import tree_of

_DRAWN = 0.05  # part of delta that draws may miss their distributions by, where it is not known yet how many there are
_LOST = 0.01  # part of delta that the draws of triples' tables may miss their distributions by
# seconds of one core that learning takes for each pair of attributes, each cell of their tables, and each cell of the
# model in each round, and that drawing takes for each value
_PAIR, _PAIR_CELL, _MODEL_CELL, _VALUE = 1.6e-3, 4e-5, 6e-7, 6e-8
TARGET_WEIGHT = 2.0  # of the pairs of a target attribute


@dataclass(frozen=True, kw_only=True)
class SynthesisPlan(EventPlan):
    """Everything a synthesis will do and cost, before it reads a record."""

    noise_name: ClassVar[str] = "Expected error of two-way tables (as --accuracy has it)"

    spec: WholeSynthesisSpec
    choices: Choices  # of the model, with its part of mu
    accuracy_mu: float = 0.0  # mu of the measurement of the records' accuracy; 0 where nothing is measured
    regression_mu: float = 0.0  # the same of the declared regressions
    discovery_mu: float = 0.0  # the same of values that are found before the model is learned
    discovery: Discovery | None = None  # how they are found; None where nothing is open

    @property
    def parts(self) -> Sequence[int]:
        """Rows of each part of the release."""
        return parts_of(self.spec.records, self.spec.output.rows_per_part)

    def public_parameters(self) -> dict[str, Any]:
        """The public parameters, for the manifest."""
        return {
            **super().public_parameters(),
            "records": self.spec.records,
            "choices": {name: v for name, v in tree_of(self.choices).items() if self._chosen(name)},
            "accuracy_mu": self.accuracy_mu,
        } | ({"regression_mu": self.regression_mu} if self.regression_mu else {})

    @cached_property
    def apart(self) -> Choices:
        """The choices of the model where earlier releases, or a public table, turn out to be too far from this table to
        begin with: by then the one-way tables are measured, and what is counted is decided.
        """
        own, found = self.choices, _choices(_alone(self.spec), self.choices.mu)
        if not found.rake:
            pairs = max(found.pairs - (found.spends - own.spends), 0.0)  # a misfit has a share
            return model_choices.with_high(replace(found, pairs=pairs), self.spec.presumed.cardinalities)
        rake = found.rake + found.one_way_again - own.one_way_again
        return replace(found, rake=rake, one_way_again=own.one_way_again, high=own.high, high_picks=own.high_picks)

    @property
    def mu(self) -> float:
        """All that is measured is this many mu-GDP, for one record."""
        return math.hypot(self.choices.mu, self.accuracy_mu, self.regression_mu, self.discovery_mu)

    def noise_at(self, at_most: int) -> float:
        """The expected error of two-way tables."""
        return plan(self.spec.with_bound(at_most)).expected.error

    @cached_property
    def expected(self) -> Expected:
        """The accuracy that the records are expected to have, without a prior: nothing public says how near one is."""
        spec, choices = self.spec, self.choices
        if spec.model.prior:
            choices = _choices(_alone(spec), choices.mu)
        choices = replace(choices, mu=choices.mu / spec.widening(len(spec.clients)))
        sizes = spec.presumed.cardinalities
        return forecast.expected(sizes, choices, minimum=spec.expected_records, released=spec.records)

    def error_at(self, schema: Schema, mu: float, records: int, released: int | None = None) -> float:
        """The expected error of two-way tables of a mu-GDP model that learns from this many records; by default it
        releases as many.
        """
        sizes = schema.cardinalities
        choices = choose(sizes, records=records, mu=mu)
        return forecast.expected(sizes, choices, minimum=records, released=released or records).error

    def knowing(self, spec: WholeSynthesisSpec, spent: float) -> SynthesisPlan:
        """The plan of the spec that has what was found, for this much of mu^2. Raises SpecError: too much was found."""
        left = math.sqrt(self.mu**2 - spent) / ABOVE
        found = _planned(spec, self.event, left)
        before = self.discovery.draws(self.spec) if self.discovery else 0
        if (before + _draws(spec, _own(spec, left))) * SAMPLER_DELTA > _DRAWN * self.delta:
            raise SpecError("the columns have too many values for this delta: raise delta, or drop columns")
        return replace(found, discovery_mu=math.sqrt(spent))

    def _chosen(self, name: str) -> bool:
        """Whether a choice is made: there is one of a prior and of triples only with them."""
        if name.startswith("triple"):
            return bool(self.choices.triple_tables)
        if name in ("grids", "high", "high_picks"):
            return bool(getattr(self.choices, name))
        return name != "prior_cells" or self.spec.model.prior is not None or bool(self.spec.earlier_releases)

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON object."""
        return super().to_json() | {"reasons": reasons(self.choices, self.spec.presumed.cardinalities)}

    def needs(self) -> Needs:
        """Memory, tasks and time, from public sizes only."""
        choices, cards = self.choices, self.spec.presumed.cardinalities
        m, largest, passes = len(cards), max(self.parts), 2 + 2 * len(STEPS) * bool(self.regression_mu)
        pairs = m * (m - 1) // 2
        drawn = max(choices.pool_rows, largest) if choices.rake else 2 * largest
        pair_cells = min(cells_of_pairs(cards), MAX_PAIR_CELLS)
        fitting = 8 * (12 * choices.cells + 6 * pair_cells)
        learning = _PAIR * pairs + _PAIR_CELL * pair_cells + _MODEL_CELL * choices.rounds * choices.cells
        drawing = _VALUE * m * self.spec.records
        pool = choices.pool_parts * choices.pool_rows * (8 * m + pairs)
        balancing = 8 * min(largest, 1 << 15) * pairs if choices.balance else 0
        triples = sum(math.prod(cards[i] for i in t) for t in triples_of(cards)) if self.accuracy_mu else 0
        return self.bounding(
            Needs(
                partitions=self.partitions,
                tasks=passes * self.partitions + 2 * len(self.parts),
                task_bytes=16 * m * drawn + balancing + 8 * choices.cells + 8 * triples,
                held_bytes=self.spec.data.minimum_records * (self.row_bytes + 1),
                driver_bytes=fitting + pool + 24 * triples + (5 * 8 * MOST_VALUES if self.regression_mu else 0),
                seconds=core_seconds(read=passes / 2 * self.values) + learning + drawing,
            )
        )

    def errors(self) -> list[Fact]:
        """What one-way and two-way tables are expected to miss."""
        found = self.expected
        sigma = forecast.one_way_deviation(self.choices, len(self.spec.table.attributes))
        text = (
            f"two-way tables are expected within {found.error:.4f} of the table in total variation ({found.noise:.4f} "
            f"by noise, {found.sampling:.4f} by sampling), counts of one attribute within about +-{sigma:,.0f} records"
        )
        numbers = {"two_way": found.error, "noise": found.noise, "sampling": found.sampling, "one_way_count": sigma}
        series = self.spec.series
        year = [] if series is None else facts_of(self.spec, series, lambda spec: plan(spec).expected.error)
        return [Fact("Error", text, numbers), *year]

    def charges(self) -> list[Fact]:
        """The charge, and what it pays for."""
        (charge,) = super().charges()
        mu = self.mu * self.spec.records_of_a_unit
        text = f"{charge.sentence}: one Gaussian mechanism, mu {mu:.4g}"
        return [replace(charge, sentence=text, numbers={**charge.numbers, "mu": mu})]

    def _groups(self, cards: Sequence[int]) -> list[Fact]:
        size = forecast.usable_group(self.choices, cards)
        if size is None:
            return []
        text = (
            f"means of numbers in groups of about {size:,} records are off by a fifth of the number's deviation, "
            f"of samples by {1 / math.sqrt(size):.2g} of it, of larger groups by less, where the pair with the group "
            "is measured. In smaller groups, and where it is not, they are closer to the mean of all records than "
            "they should be: `model.priorities` puts all pairs of a group first, at the cost of others, and declared "
            "regressions are measured themselves"
        )
        return [Fact("Groups", text, {"records": size})]

    def details(self) -> list[Fact]:
        """What is chosen and why, and what else the spec asks for."""
        spec, cards = self.spec, self.spec.presumed.cardinalities
        facts = [Fact(title, text) for title, text in reasons(self.choices, cards).items()]
        if self.discovery:
            text = (
                f"values and bounds of {number_of(len(spec.undeclared), 'column')} are found first, with "
                f"{100 * (self.discovery_mu / self.mu) ** 2:.3g} % of mu^2 at most: values of "
                f"{self.discovery.named_from:,} records or more, rarer ones where records are few, counts within "
                f"+-{self.discovery.cells:.3g}. Till then "
                f"each is taken to have {PRESUMED_VALUES} values"
            )
            facts.insert(0, Fact("Discovery", text, {"named_from": self.discovery.named_from}))
        facts += self._groups(cards)
        if self.accuracy_mu:
            text = (
                f"measured after the records are drawn, with {100 * spec.privacy.accuracy_share:.3g} % of mu^2: "
                "intervals of one-, two- and three-way cells follow; the shares above are of the rest"
            )
            facts.append(Fact("Accuracy", text, {"share": spec.privacy.accuracy_share}))
        if self.regression_mu:
            text = (
                f"{number_of(len(spec.regressions), 'declared regression')} measured in {len(STEPS)} passes after the "
                f"records are drawn, with {100 * spec.regression_share:.3g} % of mu^2: "
                + "; ".join(shorten(text, 70, placeholder=" ...") for text in spec.regressions)
            )
            facts.append(Fact("Regressions", text, {"share": spec.regression_share}))
        if is_wide(cards):
            text = (
                "the tables of all pairs do not fit a worker: values that one-way tables show to be rare are merged, "
                "and pairs are counted in a second pass; the records' accuracy is not measured"
            )
            facts.append(Fact("Wide", text))
        if spec.model.prior:
            start = "pairs" if self.choices.prior_cells else "a tree of pairs"
            start = "one-way tables" if self.choices.rake else start  # the table's own pairs give the model
            paths = ", ".join(spec.model.prior.paths)
            text = f"the model starts from {start} of the public table {paths} ({spec.model.prior.public})"
            if spec.model.prior.records:
                text = f"unless a noisy misfit says that its rows are far, they are released, weighted; else {text}"
            facts.append(Fact("Prior", f"{text}; that table is not protected"))
        if earlier := _earlier(spec):
            made = "which make up this table"
            names = {"part": "which have this table as a part", "larger": f"{made}, too", "sum": made}
            names |= {"previous": "before it"}
            found = [f"{number_of(len(paths), 'release')} {names[kind]}" for kind, paths in earlier.items()]
            text = f"noisy tables of {' and '.join(found)} are weighed against this one's, at no charge"
            facts.append(Fact("Evidence", text, {"releases": sum(map(len, earlier.values()))}))
        if spec.table.rules:
            text = (
                f"{number_of(len(spec.table.rules), 'rule')} that no released record breaks: what they forbid has "
                "probability zero where the model is small enough, other records are drawn again, "
                f"{MOST_REDRAWS} times at most, and then replaced"
            )
            facts.append(Fact("Rules", text, {"rules": len(spec.table.rules)}))
        text = f"{spec.records:,} in {number_of(len(self.parts), 'part')}; any number costs the same"
        return [*facts, Fact("Records", text, {"records": spec.records, "parts": len(self.parts)})]


@dataclass(frozen=True, kw_only=True)
class FederatedSynthesisPlan(SummedPlan, SynthesisPlan):
    """A `SynthesisPlan` whose tables are noisy sums over clients."""

    spec: WholeSynthesisSpec

    def details(self) -> list[Fact]:
        """Those of sums, and what clients send."""
        choices, cards = self.choices, self.spec.presumed.cardinalities
        rounds = 1 if choices.rake else bool(choices.grids) + bool(choices.tree) + choices.rounds
        number = 1 + bool(choices.one_way_again) + rounds + bool(choices.triple_tables) + bool(self.accuracy_mu)
        size = 8e-6 * (draws_at_most(choices, cards) + sketch_draws(cards))
        text = f"up to {number} with tables from each client, {size:.2g} MB at most"
        return [*super().details(), Fact("Messages", text, {"messages": number, "megabytes": size})]

    def errors(self) -> list[Fact]:
        """Those of a synthesis, beside those without federation."""
        (found,) = super().errors()
        spec, mus = self.spec, (self.choices.mu, self.choices.mu / math.sqrt(len(self.spec.clients)))
        curator, local = (self.error_at(spec.presumed, mu, spec.expected_records, spec.records) for mu in mus)
        text = f"{found.sentence}; one curator's within {curator:.4f}, with noise of each client alone {local:.4f}"
        return [replace(found, sentence=text, numbers={**found.numbers, "curator": curator, "local": local})]


def plan(spec: WholeSynthesisSpec) -> SynthesisPlan:
    """Plan a synthesis. Raises SpecError: all pair tables do not fit a worker, or the parts are too large;
    AccountingError: no amount of noise meets the budget.
    """
    sizes = spec.presumed.cardinalities
    if spec.model.prior is not None:
        from dpdist.families.synthesis.prior import refuse_own_table

        refuse_own_table(spec)
    if spec.output.rows_per_part > LARGEST_PART and spec.records > LARGEST_PART:
        raise SpecError(f"output.rows_per_part: at most {LARGEST_PART:,} for a synthesis")
    epsilon, delta = spec.privacy.epsilon, spec.privacy.delta
    if is_wide(sizes) and (spec.model.prior or spec.earlier_releases):
        setting = "prior" if spec.model.prior else "evidence"
        raise SpecError(f"model.{setting}: the pair tables of these domains are too large to start from; leave it out")
    if is_wide(sizes) and spec.federated is not None:
        raise SpecError("federated: the pair tables of these domains are too large for clients: declare coarser values")
    if is_wide(sizes) and cells_of_pairs((2,) * len(sizes)) > MOST_CODED_CELLS:  # merging rare values would not end
        raise SpecError(
            f"schema: {len(sizes):,} attributes: the tables of all pairs do not fit a worker, even "
            "with two values each; leave attributes out, or declare coarser values"
        )
    calibrated = partial(GaussianPlan.of, epsilon=epsilon, label="all noisy tables, distances and picks")
    if spec.discover is None:
        whole = with_draws(
            lambda draws: calibrated(delta=delta, draws=draws),
            _draws(spec, 1.0),
            lambda mu: _draws(spec, _own(spec, mu)),
        )
        if spec.series is not None and whole.lost.delta > float(KEPT / 3) * delta:  # of what the series keeps for draws
            raise SpecError(f"privacy.delta: of a series, draws take at most {float(KEPT / 3):.2g} of it: raise it")
        return _planned(spec, whole.event, whole.mu)
    lost = ApproximateDP(0.0, lost_by(spec) + _DRAWN * delta, label="values of one record named, and draws")
    whole = calibrated(delta=delta - lost.delta)
    own, rest = whole.part(spec.discover.share), whole.part(1 - spec.discover.share)
    planned = _planned(spec, Composed((whole.event, lost)), rest)
    return replace(planned, discovery=Discovery.of(spec, own), discovery_mu=own)


def _own(spec: WholeSynthesisSpec, mu: float) -> float:
    """The part of a unit's mu that the tables of a model have for one record."""
    rest = 1 - spec.regression_share - spec.accuracy_share
    own = mu / spec.records_of_a_unit
    return own if rest == 1 else own * math.sqrt(rest) / ABOVE


def _draws(spec: WholeSynthesisSpec, mu: float) -> int:
    """A bound of the draws of noise, where the tables of the model have this mu."""
    sizes = spec.presumed.cardinalities
    measured = draws(sizes) if spec.federated is None else sketch_draws(sizes)
    accuracy = measured if spec.accuracy_share else 0
    public = (2 + 2 * sum(sizes)) * (spec.model.prior is not None)  # the misfit, and further one-way tables
    alone = _alone(spec) if spec.earlier_releases or spec.model.prior else spec
    model = max(draws_at_most(_choices(one, mu), sizes) for one in (spec, alone))
    drawn = model + public + accuracy + draws_of(spec.parsed_regressions())
    return drawn * max(1, len(spec.clients))  # of each client


def _alone(spec: WholeSynthesisSpec) -> WholeSynthesisSpec:
    """The spec without a public table and earlier releases."""
    return change(spec, {"model.evidence": {}, "series": None, "model.prior": None})


def _planned(spec: WholeSynthesisSpec, event: Event, mu: float) -> SynthesisPlan:
    """The plan that divides mu."""
    sizes = spec.presumed.cardinalities
    # what is mu-GDP for one record is (c mu)-GDP for c of them, so a record may have a c-th of the unit's mu
    own = mu / spec.records_of_a_unit
    shares = spec.accuracy_share, spec.regression_share
    accuracy_mu, regression_mu = (own * math.sqrt(share) / ABOVE for share in shares)
    choices = _choices(spec, _own(spec, mu))
    forecast.refuse_undrawable(choices, sizes)
    if regressions := spec.parsed_regressions():
        largest = max(len(regression.names) for regression in regressions)
        of_step = regression_mu / math.sqrt(forecast.ROUNDED * len(regressions) / min(STEPS))
        deviation = sensitivity(largest) / of_step
        forecast.check_deviation("privacy.regression_share", deviation)
    if accuracy_mu:
        forecast.check_deviation("privacy.accuracy_share", max(deviations(sizes, mu=accuracy_mu).values()))
    kind = SynthesisPlan if spec.federated is None else FederatedSynthesisPlan
    return kind(
        spec=spec,
        event=event,
        delta=spec.privacy.delta,
        choices=choices,
        accuracy_mu=accuracy_mu,
        regression_mu=regression_mu,
    )


def _earlier(spec: WholeSynthesisSpec) -> dict[str, tuple[str, ...]]:
    """The earlier releases that are evidence, by relation: their paths."""
    if not spec.earlier_releases:
        return {}
    from dpdist.families.synthesis.prior import evidence_paths

    return evidence_paths(spec)


def _choices(spec: WholeSynthesisSpec, mu: float) -> Choices:
    """The choices that the spec does not make."""
    m = len(spec.table.attributes)
    sizes = spec.presumed.cardinalities
    widening = spec.widening(len(spec.clients))
    found = choose(sizes, records=spec.expected_records, mu=mu / widening)
    if any(len(priority.attributes) == 1 for priority in spec.model.priorities):
        found = replace(found, coarse=(*found.coarse, model_choices.SECOND_COPY))
    if spec.federated is not None:
        found = model_choices.with_sums(replace(found, mu=mu))
    if spec.model.prior:
        found = model_choices.with_prior(found, m, rows=spec.model.prior.records)
    elif _earlier(spec):
        found = model_choices.with_evidence(found, sizes)
    if not draws_at_most(found, sizes) * SAMPLER_DELTA <= _LOST * spec.privacy.delta:
        found = model_choices.without_triples(found)
    own = spec.model.model_dump(exclude_none=True, include={"rounds", "balance"})
    found = replace(found, priorities=priorities_of(spec), **own)
    return found if spec.federated is not None else model_choices.with_high(found, sizes)


def priorities_of(spec: WholeSynthesisSpec) -> tuple[tuple[int, int, float], ...]:
    """Numbers of the attributes of each pair with a weight of its own, and the weight."""
    names, target = spec.table.names, spec.model.target
    found = {}
    if target is not None:
        t = names.index(target)
        found = {(min(i, t), max(i, t)): TARGET_WEIGHT for i in range(len(names)) if i != t}
    for priority in sorted(spec.model.priorities, key=lambda one: len(one.attributes) != 1):  # own pairs count last
        places = sorted(names.index(name) for name in priority.attributes)
        one = places[0] if len(places) == 1 else None
        pairs = [(min(i, one), max(i, one)) for i in range(len(names)) if i != one] if one is not None else []
        found |= dict.fromkeys(pairs or combinations(places, 2), priority.weight)
    return tuple((i, j, weight) for (i, j), weight in sorted(found.items()))
