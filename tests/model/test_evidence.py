"""Noisy tables of earlier releases as evidence."""

import math
from dataclasses import replace
from typing import Any, Self

import numpy as np
import pytest
from syntheses import learn

from dpdist.accuracy.tables import Tables
from dpdist.data.count import pair_counts
from dpdist.model import learn as model
from dpdist.model.account import GaussianAccount, Measurements, NoisyTable
from dpdist.model.choices import choose, with_evidence
from dpdist.model.drift import CLASSES, Chain, Drift, differences, drift_of, spread_of
from dpdist.model.evidence import Earlier, Evidence, Related, RelationKind, _between, _recoded, sums_of
from dpdist.model.learn import Known, Learned
from dpdist.model.one_way import OneWay
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise

CARDS = (6, 5, 8, 30)
KEY = Noise(bytes(range(32)))
SIZE, ROWS = 4000, 20_000


def published(table: np.ndarray, deviation: float, rng: np.random.Generator) -> Earlier:
    """A release of one attribute's table."""
    noisy = np.rint(table + rng.normal(0, deviation, table.shape)).astype(np.int64)
    own = NoisyTable("one-way", (0,), False, deviation, table.shape, noisy)
    return Earlier(Measurements((own,), (0,), (np.arange(len(table)),)), int(table.sum()))


def weighed(kind: RelationKind, tables: list[np.ndarray], last: np.ndarray, deviation: float = 30.0) -> Any:
    """Evidence, this release's noisy table, and what both say of it."""
    rng = np.random.default_rng(5)
    related = Related(kind, tuple(published(table, deviation, rng) for table in tables))
    noisy = last + rng.normal(0, deviation, len(last))
    found = Evidence((related,))
    one_way = found.weigh_values(OneWay((noisy,), np.array([deviation]), float(last.sum())))
    return found, noisy, one_way


def periods(number: int, seed: int, drift: float = 0.0) -> list[np.ndarray]:
    """Tables of independent persons; the logarithms of the cells' shares take steps of this deviation."""
    rng = np.random.default_rng(seed)
    rate, found = rng.gamma(0.7, 400, SIZE), []
    for _ in range(number):
        found.append(rng.poisson(rate).astype(np.float64))
        rate = rate * np.exp(rng.normal(0, drift, SIZE))
    return found


@pytest.mark.parametrize("drift", [0.0, 0.05, 1.0])
def test_drift_is_estimated_and_intervals_count_it(drift: float) -> None:
    """Independent persons give deviations of 1; the variances of the estimates are those of their errors."""
    *before, last = periods(6, 1, drift)
    found, noisy, one_way = weighed("previous", before, last)
    (report,) = found.report()
    if drift < 1:
        assert report["persons"][2:4] == pytest.approx([1, 1], abs=0.25)
    of_steps = np.array(report["steps"])[[2, 4]]  # of cells with about 120 and 1,900 records
    assert of_steps == pytest.approx(np.array([120, 1900]) * drift**2, rel=0.6, abs=0.25) or drift == 1
    counts, variance = found.estimate((0,))
    covered = np.abs(counts - last) < 1.96 * np.sqrt(variance)
    assert 0.93 < covered.mean() < 0.97
    large = last > 300
    assert 0.92 < covered[large].mean() < 0.98
    ours, alone = ((estimate - last) @ (estimate - last) for estimate in (counts, noisy))
    assert ours < (0.75 if drift < 1 else 1.01) * alone
    assert one_way.sigmas[0] < 30


def test_parts_of_a_sum_weigh_as_their_noise_says() -> None:
    """A sum of exact parts has no drift, and one that lacks a part is found out."""
    parts = periods(3, 2)
    total = np.sum(parts, axis=0)
    found, noisy, _ = weighed("sum", parts, total)
    assert max(found.report()[0]["steps"]) < 0.2
    counts, variance = found.estimate((0,))
    assert variance.mean() == pytest.approx(1 / (1 / 900 + 1 / 2700), rel=0.1)
    assert np.mean((counts - total) ** 2) == pytest.approx(variance.mean(), rel=0.1)
    found, noisy, _ = weighed("sum", parts[:2], total)
    counts, variance = found.estimate((0,))
    assert np.mean((counts - total) ** 2) < 1.02 * np.mean((noisy - total) ** 2)
    assert np.mean(np.abs(counts - total) < 1.96 * np.sqrt(variance)) > 0.92


def test_a_table_is_a_part_of_another() -> None:
    last, other = periods(2, 3)
    whole = last + other * 9
    found, noisy, _ = weighed("part", [whole], last)
    counts, variance = found.estimate((0,))
    assert np.mean((counts - last) ** 2) < 0.6 * np.mean((noisy - last) ** 2)
    assert 0.92 < np.mean(np.abs(counts - last) < 1.96 * np.sqrt(variance)) < 0.98


def test_what_cannot_be_told_is_taken_for_steps() -> None:
    """Of one earlier release nothing says whether other persons or another time make the difference."""
    before, last = periods(2, 4)
    found, *_ = weighed("previous", [before], last)
    (report,) = found.report()
    assert report["persons"] == [0.0] * (len(CLASSES) + 1)
    assert report["steps"][3] == pytest.approx(2, rel=0.2)


def test_cells_of_most_records_drift_as_the_rest_does() -> None:
    """Independent persons give a cell of 80 % as much as the four of 5 %."""
    rng, shares = np.random.default_rng(6), np.array([0.8, 0.05, 0.05, 0.05, 0.05])
    tables = [(rng.multinomial(100_000, shares) + rng.normal(0, 20, 5), np.full(5, 400.0)) for _ in range(300)]
    for cells in (slice(0, 1), slice(1, None)):
        spread = spread_of(100_000 * shares[cells], 100_000)
        chain: Chain = [(y[cells], v[cells]) for y, v in tables]
        drift = drift_of(differences(chain, None, spread))
        persons, steps = drift.at(spread)
        assert persons == pytest.approx(spread, rel=0.35)
        assert (steps < 0.02 * spread).all()


def test_a_table_that_moves_faster_than_the_others_is_told() -> None:
    rng, spread = np.random.default_rng(7), np.full(40, 1000.0)
    drift = Drift((1.0,) * 7, (0.5,) * 7, (0.1,) * 7)
    for steps, least, most in ((0.5, 1.0, 1.5), (5.0, 4.0, 14.0)):
        walk = np.cumsum(rng.normal(0, np.sqrt(steps * spread), (6, 40)), axis=0)
        persons, noise = (rng.normal(0, sigma, walk.shape) for sigma in (np.sqrt(1000), 10.0))
        chain: Chain = [(1e5 + y, np.full(40, 100.0)) for y in walk + persons + noise]
        assert least <= drift.faster(chain, spread) <= most


def records(rows: int, seed: int, drift: float = 0.0) -> Codes:
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 6, rows)
    b = np.where(rng.random(rows) < 0.6, np.minimum(a, 4), rng.integers(0, 5, rows))
    c = np.where(rng.random(rows) < 0.8 - drift, a + 1, rng.integers(0, 8, rows))
    d = np.minimum(rng.geometric(0.1 + 0.05 * b, rows) - 1, 29)
    return [column.astype(np.uint8) for column in (a, b, c, d)]


def learned(
    month: int, earlier: tuple[Earlier, ...], kind: RelationKind = "previous", *, key: int = 0, **how: Any
) -> Learned:
    made = choose(CARDS, records=ROWS, mu=0.06, raking=False)
    made = replace(made, iterations=(12,), rounds=2)
    known: dict[str, Any] = {}
    if earlier:
        made = with_evidence(made, CARDS)
        known["evidence"] = Evidence((Related(kind, earlier),))
    noise = Noise(bytes([key, *bytes(30), month]))
    return learn(pair_counts(records(ROWS, month, **how), CARDS), choices=made, noise=noise, drawing=KEY, **known)


def distance(found: Learned, month: int, **how: Any) -> float:
    truth, shares = pair_counts(records(ROWS, month, **how), CARDS), found.fitted.expected / 2.0**40
    pairs = [truth.pair(i, j).ravel() for i in range(4) for j in range(i + 1, 4)]
    return float(np.abs(shares - np.concatenate(pairs) / ROWS).sum() / 12)


def test_months_before_make_a_month_better_at_no_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    releases: tuple[Earlier, ...] = ()
    drawn: list[tuple[str, int]] = []
    measure = GaussianAccount.measure
    monkeypatch.setattr(
        GaussianAccount, "measure", lambda self, name, *a, **k: drawn.append((name, 1)) or measure(self, name, *a, **k)
    )
    ours, alone = 0.0, 0.0
    for key in (3, 2, 1, 0):
        drawn, releases = [], ()
        for month in range(5):
            found = learned(month, releases, key=key)
            releases += (Earlier(found.measurements, found.report["records"]),)
        ours, alone = ours + distance(found, 4), alone + distance(learned(4, (), key=key), 4)
    assert ours < 0.85 * alone
    assert sum(share for _, share in found.report["account"]) <= 1
    steps = {name for name, _ in found.report["account"] if "pick" not in name}
    assert {table.step for table in found.measurements.tables} == steps <= {name for name, _ in drawn}
    repeated = Evidence((Related("previous", releases[:-1]),)).repeated(found.measurements)
    assert repeated == found.report["drift"]
    # a fifth of the records of the last month are others
    changed = learned(6, releases, drift=0.2)
    assert distance(changed, 6, drift=0.2) < 1.05 * distance(learned(6, (), drift=0.2), 6, drift=0.2)


@pytest.mark.parametrize("is_far", [False, True])
def test_a_release_begins_without_evidence_that_drifts_too_far(is_far: bool) -> None:
    """Of a population with other values it learns a tree of its own, as without; verification finds the same drift."""
    first = learned(0, ())
    released = Earlier(first.measurements, first.report["records"])
    table = records(ROWS, 1)
    if is_far:
        table = [size - 1 - column for column, size in zip(table, CARDS, strict=True)]
    apart = replace(choose(CARDS, records=ROWS, mu=0.06, raking=False), iterations=(12,), rounds=2)
    known = {"evidence": Evidence((Related("part", (released,)),)), "apart": apart}
    noise = Noise(bytes(31) + bytes([9]))
    choices = with_evidence(apart, CARDS)
    found = learn(pair_counts(table, CARDS), choices=choices, noise=noise, drawing=KEY, **known)  # type: ignore[arg-type]
    assert known["evidence"].is_far == is_far  # type: ignore[attr-defined]
    assert any(step == "tree/tables" for step, _ in found.report["account"]) == is_far
    repeated = Evidence((Related("part", (released,)),)).repeated(found.measurements)
    assert repeated == found.report["drift"]


def test_earlier_tables_of_pairs_have_the_margins_of_now() -> None:
    """A margin that differs from the country's is told once, and not by each of many tables of pairs."""
    country, place = (np.outer(np.array(a), np.array(b)) for a, b in (([5.0, 5], [4.0, 6]), ([200.0, 600], [0.3, 0.7])))
    country *= 1e4
    whole = [(country.sum(1 - k) if k < 2 else country).astype(np.int64) for k in range(3)]
    sets: list[tuple[int, ...]] = [(0,), (1,), (0, 1)]
    noisy = tuple(NoisyTable("x", s, len(s) > 1, 30.0, t.shape, t.ravel()) for s, t in zip(sets, whole, strict=True))
    codes = (np.arange(2), np.arange(2))
    found = Evidence((Related("part", (Earlier(Measurements(noisy, (0, 1), codes), 1_000_000),)),))
    one_way = found.weigh_values(OneWay((place.sum(1), place.sum(0)), np.array([1.0, 1.0]), place.sum()))
    found.weigh_pairs(found.coding(one_way))
    assert found.estimate((0, 1))[0] == pytest.approx(place, abs=8)


def test_pairs_outside_of_the_tree_come_back_when_it_may_have_more_cells() -> None:
    releases = tuple(Earlier(one.measurements, one.report["records"]) for one in (learned(0, ()), learned(1, ())))
    known = Known(evidence=Evidence((Related("previous", releases),)))
    choices = with_evidence(choose(CARDS, records=ROWS, mu=0.06, raking=False), CARDS)
    left = []
    for most in (300, 150_000):
        choices = replace(choices, iterations=(12,), rounds=2, cells=most, prior_cells=300)
        account = GaussianAccount(0.06, Noise(bytes(32)))
        made = model.measure(pair_counts(records(ROWS, 2), CARDS), account, choices=choices, known=known)
        left.append(len(made.learner.outside))
    assert left[0] > left[1] == 0


@pytest.mark.parametrize("triples", [0, 4])
def test_where_all_pairs_are_measured_they_have_what_evidence_makes_needless(triples: int) -> None:
    """Pairs have weights by what their cells hold, and verification finds the same drift."""
    made = replace(choose(CARDS, records=10**7, mu=0.06), pool_parts=1, pool_rows=20_000, balance=0)
    choices = replace(with_evidence(made, CARDS), iterations=(12,))
    assert (made.rake > 0.4, choices.rake > 0.8, choices.balance, choices.triple_tables) == (True, True, 150, 0)
    assert choices.spends == pytest.approx(made.spends)
    if triples:
        choices = replace(choices, rake=choices.rake - 0.1, triples=0.1, triple_tables=triples, triple_groups=3)
    releases = tuple(Earlier(one.measurements, one.report["records"]) for one in (learned(0, ()), learned(1, ())))
    related = (Related("sum", releases),)
    table = [np.concatenate(columns) for columns in zip(records(ROWS, 0), records(ROWS, 1), strict=True)]
    known, noise = Evidence(related), Noise(bytes(31) + bytes([8]))
    counts = Tables.counted(table, CARDS) if triples else pair_counts(table, CARDS)
    found = learn(counts, choices=choices, noise=noise, drawing=KEY, evidence=known)
    assert {step for step, _ in found.report["account"]} == {
        "one-way", "one-way/again", "all pairs", *["triples"] * bool(triples),
    }  # fmt: skip
    cells = {t.attributes: t.deviation for t in found.measurements.tables if t.step == "all pairs"}
    assert cells[2, 3] < cells[0, 1]
    assert Evidence(related).repeated(found.measurements) == found.report["drift"]
    # a month after it, with codes of its own
    last = Earlier(found.measurements, found.report["records"])
    after = learned(2, (last,))
    assert Evidence((Related("previous", (last,)),)).repeated(after.measurements) == after.report["drift"]


def test_where_all_pairs_are_measured_the_model_has_what_changed() -> None:
    """Attributes that have come apart have the margins that they had, so that one-way tables say nothing of it."""
    made = replace(choose(CARDS, records=10**7, mu=0.15), pool_parts=1, pool_rows=20_000, iterations=(12,))
    before = learned(0, ())
    known = Known(evidence=Evidence((Related("previous", (Earlier(before.measurements, before.report["records"]),)),)))
    table, other = records(ROWS, 1), np.random.default_rng(2).permutation(ROWS)
    counts = pair_counts([column[other] if k < 2 else column for k, column in enumerate(table)], CARDS)
    account, choices = GaussianAccount(0.15, Noise(bytes(32))), with_evidence(made, CARDS)
    learner = model.measure(counts, account, choices=choices, known=known).learner
    assert known.evidence is not None
    assert not known.evidence.is_far
    a, c = (learner.coding.fine[i] for i in (0, 2))
    truth = sums_of(counts.pair(0, 2) / ROWS, learner.coding.maps[a], learner.coding.maps[c])
    found = learner.marginals[a, c] if a < c else learner.marginals[c, a].T
    assert np.abs(found - truth).sum() < 0.1


def test_groups_of_values_of_triples_are_no_codes_of_the_next_model() -> None:
    made = replace(choose(CARDS, records=10**7, mu=0.06), pool_parts=1, pool_rows=20_000, balance=0)
    made = replace(made, iterations=(12,), triples=0.1, triple_tables=4, triple_groups=3, rake=made.rake - 0.1)
    counts, noise = Tables.counted(records(ROWS, 0), CARDS), Noise(bytes(31) + bytes([9]))
    found = learn(counts, choices=made, noise=noise, drawing=KEY)
    assert len([t for t in found.measurements.tables if t.step == "triples"]) == 4
    last = Earlier(found.measurements, found.report["records"])
    one_way = OneWay(tuple(counts.pairs.single(i) * 1.0 for i in range(4)), np.full(4, 20.0), float(ROWS))
    coding = Evidence((Related("previous", (last,)),)).coding(one_way)
    assert min(coding.cardinalities[a] for a in coding.fine) > 3  # rare values are merged, but not to three groups
    # where triples are not counted, pairs have their share
    alone = learn(counts.pairs, choices=made, noise=noise, drawing=KEY)
    assert math.fsum(share for _, share in alone.report["account"]) == pytest.approx(made.spends)


def test_tables_of_other_codes_are_used_as_far_as_they_are_finer() -> None:
    """A release that merged other values says nothing of these, and one of all values says it of merged ones."""
    first = learned(0, ())
    coarse = replace(
        first.measurements,
        maps=tuple(np.minimum(codes, 1) for codes in first.measurements.maps),
        tables=tuple(t for t in first.measurements.tables if not t.coded),
    )
    all_pairs = tuple(
        NoisyTable(
            "all pairs",
            pair,
            False,
            20.0,
            (CARDS[pair[0]], CARDS[pair[1]]),
            np.zeros(CARDS[pair[0]] * CARDS[pair[1]], np.int64),
        )
        for pair in ((0, 1), (2, 3))
    )
    other = replace(coarse, tables=coarse.tables + all_pairs)
    found = Evidence((Related("previous", (Earlier(other, ROWS), Earlier(first.measurements, ROWS))),))
    counts = pair_counts(records(ROWS, 0), CARDS)
    one_way = OneWay(tuple(counts.single(i) * 1.0 for i in range(4)), np.full(4, 20.0), float(ROWS))
    coding = found.coding(found.weigh_values(one_way))
    assert [codes.tolist() for codes in coding.maps] == [codes.tolist() for codes in first.measurements.maps]
    found.weigh_pairs(coding)
    fine = {tuple(sorted((coding.fine[i], coding.fine[j]))) for i, j in ((0, 1), (2, 3))}
    assert fine <= set(found.pairs)
    (copy,) = set(range(len(coding.source))) - set(coding.fine)  # of the last attribute
    every, finest = (_recoded(other, coding, finest=of) for of in (False, True))
    pair = min(coding.fine[2], copy), max(coding.fine[2], copy)
    assert set(finest) == fine
    assert set(every) == {*fine, pair}  # sums of cells have the variance of all of them
    assert every[pair][1].sum() == 20.0**2 * CARDS[2] * CARDS[3]


class Replayed(GaussianAccount):
    """An account that keeps the exact tables and scores of its steps and, where it is given some, takes their outcomes
    from a run before: what a neighbour changes is then compared given the same outcomes.
    """

    def __init__(self, mu: float, noise: Noise, before: Self | None = None) -> None:
        super().__init__(mu, noise)
        self.before, self.steps = before, list[tuple[str, list[np.ndarray], Any]]()

    def measure(self, name: str, tables: Any, **how: Any) -> Any:
        noisy, sigmas = super().measure(name, tables, **how)
        if self.before is not None:
            _, _, (noisy, same) = self.before.steps[len(self.steps)]
            assert np.array_equal(sigmas, same)
            self.noisy[-len(noisy) :] = [
                (name, i, *pair) for i, pair in enumerate(zip(noisy, sigmas.tolist(), strict=True))
            ]
        self.steps.append((name, [table.copy() for table in tables], (noisy, sigmas)))
        return noisy, sigmas

    def pick(self, name: str, candidates: Any, **how: Any) -> int:
        choice = super().pick(name, candidates, **how)
        if self.before is not None:
            choice = self.before.steps[len(self.steps)][2]
        self.steps.append((name, [np.array(candidates._scores)], choice))
        return choice


def loss(one: Replayed, other: Replayed) -> float:
    """What two tables' runs with the same outcomes differ by, in mu^2: shifts over deviations, and picks."""
    spent = {line.name: line.spent for line in one.lines}
    total = 0.0
    for (name, exact, outcome), (again, others, _) in zip(one.steps, other.steps, strict=True):
        assert name == again
        if isinstance(outcome, tuple):
            shifts = [float(((a - b) ** 2).sum()) for a, b in zip(exact, others, strict=True)]
            total += sum(shift / sigma**2 for shift, sigma in zip(shifts, outcome[1].tolist(), strict=True))
        else:  # what it costs where a score moves by 1, and nothing else is proved of it
            moved = int(np.abs(exact[0] - others[0]).max())
            assert moved <= 1
            total += moved * spent[name]
    return total


@pytest.mark.parametrize("raked", [False, True])
def test_no_neighbour_of_a_series_loses_more_than_is_charged(raked: bool) -> None:
    """Two months and what they make up, of a tiny universe; a record more in one month, and so in their sum, or in
    both, with each of all values. What a release costs is charged whatever those before it said, which is public; the
    charge is attained, and over all it is that of the series.
    """
    cards, rng = (2, 2, 3), np.random.default_rng(8)
    universe = [list(value) for value in np.ndindex(cards)]
    months = [[rng.integers(0, size, 400).astype(np.uint8) for size in cards] for _ in range(2)]
    together = [np.concatenate(columns) for columns in zip(*months, strict=True)]
    made = list[Earlier]()

    def run(period: int, share: float, person: list[int] | None, before: Replayed | None) -> Any:
        table = [*months, together][period]
        if person is not None:
            table = [np.append(column, np.uint8(value)) for column, value in zip(table, person, strict=True)]
        mu = np.sqrt(share)
        choices = replace(choose(cards, records=len(table[0]), mu=mu, raking=False), iterations=(3,))
        related = Related("previous", (made[0],)) if period == 1 else Related("sum", tuple(made[:2]))
        known = Known(evidence=Evidence((related,))) if period else Known()
        account = Replayed(mu, Noise(bytes(31) + bytes([period])), before)
        if raked:
            freed = choices.tree + choices.pairs + choices.picks
            choices = replace(choices, tree=0.0, pairs=0.0, picks=0.0, rake=freed, rounds=1, pool_rows=2_000)
        choices = with_evidence(choices, cards) if period else choices
        if raked:
            choices = replace(choices, rake=choices.rake - 0.1, triples=0.1, triple_tables=1, triple_groups=2)
        counts = Tables.counted(table, cards) if raked else pair_counts(table, cards)
        found = model.learn(counts, account, choices=choices, drawing=KEY, known=known)
        return account, Earlier(found.measurements, found.report["records"])

    losses = []
    for period, share in enumerate((0.7, 0.7, 0.3)):
        base, found = run(period, share, None, None)
        made.append(found)
        assert ("triples" in [name for name, *_ in base.steps]) == raked
        losses.append([loss(base, run(period, share, person, base)[0]) for person in universe])
        charged = sum(line.spent for line in base.lines)
        assert charged <= share
        assert 0.9 * charged < max(losses[-1]) <= charged * (1 + 1e-9)
    for month in (0, 1):  # a record is in its month and in the sum
        assert 0.85 < max(a + b for a, b in zip(losses[month], losses[2], strict=True)) <= 1
    both = [a + b for a in losses[0] for b in losses[1]]
    assert 1.2 < max(both) <= 1.4  # of a person with a record in both, who is charged for both


def test_a_part_without_a_table_is_taken_to_be_as_the_others() -> None:
    """The sum of two of three parts counts with the variance of what the third one may be."""
    rng, tables = np.random.default_rng(6), periods(4, 9)
    total = np.sum(tables[:3], axis=0)
    releases = tuple(published(table, 30.0, rng) for table in tables[:3])
    related = Related("sum", releases)
    both = [(r.measurements.tables[0].counts * 1.0, np.full(SIZE, 900.0)) for r in releases[:2]]
    parts = _between(related, [[*both, None]])
    ((found,),) = related.chains([*both, None], total.sum(), parts)
    assert found is not None
    counts, variance = found
    assert np.mean((counts - total) ** 2) == pytest.approx(variance.mean(), rel=0.1)
    assert 0.92 < np.mean(np.abs(counts - total) < 1.96 * np.sqrt(variance)) < 0.98


def test_drift_is_known_where_no_two_times_in_a_row_were_measured() -> None:
    """Of a pair two steps apart the drift of a step is known within half of the deviation of what they differ by."""
    rng, level = np.random.default_rng(8), np.full(SIZE, 500.0)
    spread = spread_of(level, 1e9)
    first, last = (
        (level + rng.normal(0, 30, SIZE), np.full(SIZE, 900.0)),
        (level + rng.normal(0, np.sqrt(900 + 2 * 3 * spread)), np.full(SIZE, 900.0)),
    )
    found = drift_of(differences([first, None, last], None, spread))
    of_class = int(np.searchsorted(CLASSES, spread[0], side="right"))
    unsure = found.unsure[of_class]
    assert abs(found.steps[of_class] + found.persons[of_class] - 3) < 6 * unsure
    assert unsure == pytest.approx((1800 / 500 + 6) / 2 * np.sqrt(2 / SIZE), rel=0.1)
