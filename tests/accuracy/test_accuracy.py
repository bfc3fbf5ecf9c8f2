"""The measured accuracy of records: what one record changes, what is public of it, and the intervals that follow."""

import json
import math
from dataclasses import replace
from functools import reduce
from itertools import combinations, combinations_with_replacement, pairwise, product

import numpy as np
import pytest

from dpdist.accuracy import measured
from dpdist.accuracy.intervals import CellErrors, sentence
from dpdist.accuracy.measured import Accuracy, Order, at_scale, classes_of, deviations, measure_accuracy
from dpdist.accuracy.tables import Tables, _blocks, halves_of, tables_operator, triples_of
from dpdist.data.count import covering_blocks, pair_counts, table_counts
from dpdist.data.operators import pair_counts_operator
from dpdist.model.account import GaussianAccount
from dpdist.model.choices import choose
from dpdist.model.draw import draw_records
from dpdist.model.learn import learn
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise

CARDS = (2, 2, 3)
KINDS = tuple(product(*(range(size) for size in CARDS)))
LEAST_NOISE = 1e-9


def tables(codes: Codes, cards: tuple[int, ...]) -> Tables:
    """What a pass counts, by definition."""
    return Tables(pair_counts(codes, cards), table_counts(codes, cards, triples_of(cards)))


def records(kinds: tuple[int, ...]) -> Tables:
    return tables([np.array([KINDS[k][i] for k in kinds], np.uint8) for i in range(3)], CARDS)


@pytest.mark.parametrize(
    "cards", [(4,), (3, 2), CARDS, (9, 5, 2, 7, 3), (40, 3, 50, 2, 9), (2,) * 9, (3,) * 25, (16,) * 9 + (3,) * 5]
)
@pytest.mark.parametrize("cells", [1, 64, 1 << 16])
def test_a_pass_counts_the_tables_in_any_parts(
    cards: tuple[int, ...], cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With blocks that hold several triples, and with too many triples for that."""
    monkeypatch.setattr("dpdist.accuracy.tables.BLOCK_CELLS", cells)
    monkeypatch.setattr("dpdist.accuracy.tables._blocks", _blocks.__wrapped__)
    rng = np.random.default_rng(0)
    codes = [rng.integers(0, size, 500).astype(np.uint8) for size in cards]
    expected, operator = tables(codes, cards), tables_operator(cards)
    for edges in ((0, 500), (0, 0, 7, 300, 500)):
        first, *parts = [[column[a:b] for column in codes] for a, b in pairwise(edges)]
        summary = operator.chunk(first)
        if parts:  # a second batch of the same partition
            summary = operator.add(summary, parts.pop())
        summaries = (summary, *map(operator.chunk, parts))
        if operator.compact:
            summaries = tuple(map(operator.compact, summaries))
        whole = reduce(operator.combine, summaries)
        found = operator.finish(whole) if operator.finish else whole
        assert np.array_equal(found.pairs.cells, expected.pairs.cells)
        assert np.array_equal(found.triples, expected.triples)


def statistics(exact: Tables, released: Tables, scale: int) -> dict[str, np.ndarray]:
    """What is measured, without noise."""
    found = measure_accuracy(exact, released, records=scale, mu=1 / LEAST_NOISE, noise=Noise(bytes(32)))
    sums = {f"accuracy/{order.attributes}": np.array(order.sums) for order in found.orders}
    return sums | {"accuracy/pairs": np.array(found.pairs)}


def test_one_record_changes_no_more_than_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tables of up to three records with one more, against several releases: the whole vector moves by mu."""
    mu = 0.7
    sigma = deviations(CARDS, mu=mu)
    # edges by which tiny tables have several classes
    monkeypatch.setattr(measured, "EDGES", (1000, 2500, 3500, 5000, 6000, 7000, 8000, 9000))
    worst = 0.0
    for published in [(0, 0, 0), (0, 5, 11), (1, 1, 4, 7, 10), (11,)]:
        released = records(published)
        for scale in (1, 4):
            found = {
                kinds: statistics(records(kinds), released, scale)
                for size in range(4)
                for kinds in combinations_with_replacement(range(len(KINDS)), size)
            }
            for kinds, before in found.items():
                for extra in range(len(KINDS)) if len(kinds) < 3 else ():
                    after = found[tuple(sorted((*kinds, extra)))]
                    shift = math.sqrt(sum((((after[n] - before[n]) / sigma[n]) ** 2).sum() for n in sigma))
                    worst = max(worst, shift)
    assert 0.999 * mu < worst <= mu


@pytest.mark.parametrize("cards", [(3,), (2, 4), CARDS, (2,) * 12, (3,) * 50])
def test_all_deviations_together_cost_mu(cards: tuple[int, ...]) -> None:
    m = len(cards)
    sigma = deviations(cards, mu=0.3)
    sensitivity = {"accuracy/1": m, "accuracy/2": math.comb(m, 2), "accuracy/3": len(halves_of(cards)[1])}
    sensitivity["accuracy/pairs"] = math.sqrt(math.comb(m, 2))
    spent = math.fsum((sensitivity[name] / value) ** 2 for name, value in sigma.items())
    assert 0.999999 * 0.09 < spent < 0.09
    assert ("accuracy/pairs" in sigma) is (1 < math.comb(m, 2) <= 1000)


def test_triples_are_public_and_few() -> None:
    assert triples_of((2,) * 5) == tuple(combinations(range(5), 3))
    many = triples_of((2,) * 40)
    assert len(many) == len(set(many)) == 300
    assert all(a < b < c < 40 for a, b, c in many)
    assert triples_of((3,) * 40) == many  # of the number of attributes alone, unless tables are too large
    assert triples_of((3000,) * 4) == ()
    assert halves_of((2,) * 13) == (triples_of((2,) * 13),) * 2
    assert sorted(sum(halves_of((2,) * 14), ())) == list(triples_of((2,) * 14))  # what is measured is not compared


@pytest.mark.parametrize("cards", [(2,) * 9, (16,) * 9 + (3,) * 5, (12,) * 24])
def test_blocks_hold_several_tables(cards: tuple[int, ...]) -> None:
    pairs, triples = list(combinations(range(len(cards)), 2)), triples_of(cards)
    assert all(any(set(s) <= set(block) for block in _blocks(cards)) for s in (*pairs, *triples))
    assert len(_blocks(cards)) < (len(covering_blocks(cards)) + len(triples)) * 2 / 3


def test_many_attributes_and_large_tables_are_counted_by_themselves() -> None:
    """Blocks for many pairs take long to find, and few large summaries are combined at a time."""
    many = (2,) * 100
    assert not _blocks(many)
    large = (2000, 2000, 3, 3, 2)
    assert tables_operator(large).fan_in == pair_counts_operator(large).fan_in == 2


def test_scale_and_classes_are_integers() -> None:
    counts = np.array([0, 1, 2, 3])
    assert at_scale(counts, records=10, released=4).tolist() == [0, 3, 5, 8]  # halves upwards
    assert classes_of(np.array([0, 99, 100, 10_000]), 10_000).tolist() == [0, 4, 5, 8]


def made_up(noise: float, rows: int = 40_000) -> tuple[Codes, Codes, tuple[int, ...]]:
    """A table of five dependent attributes, and records of the same law in which some are replaced by others."""
    rng = np.random.default_rng(3)
    base = rng.integers(0, 4, rows)
    table = [(base * (i + 1) + rng.integers(0, 3, rows)) % 6 for i in range(5)]
    moved = rng.random(rows) < noise
    released = [np.where(moved, rng.integers(0, 6, rows), column) for column in table]
    return [c.astype(np.uint8) for c in table], [c.astype(np.uint8) for c in released], (6,) * 5


@pytest.mark.parametrize("noise", [0.02, 0.2])
def test_intervals_cover(noise: float) -> None:
    table, released, cards = made_up(noise)
    exact, published = tables(table, cards), tables(released, cards)
    found = measure_accuracy(exact, published, records=40_000, mu=0.1, noise=Noise(bytes(range(32))))
    pairs = {pair: published.pairs.pair(*pair).ravel() for pair in combinations(range(5), 2)}
    errors = CellErrors(found, pairs)
    for order, sets in ((1, [(i,) for i in range(5)]), (2, list(pairs)), (3, triples_of(cards))):
        hit = []
        for attributes, truth, counts in zip(sets, exact.of(order), published.of(order), strict=True):
            interval = errors.interval(attributes, counts)
            wide = errors.interval(attributes, counts, confidence=0.99)
            assert (wide.low <= interval.low).all()
            assert (wide.high >= interval.high).all()
            assert (interval.low >= 0).all()
            hit.append(((interval.low <= truth) & (truth <= interval.high))[counts > 400])
        assert np.concatenate(hit).mean() > 0.9
    words = sentence(errors)
    assert words.startswith("Measured accuracy: in 95 of 100 cells above 1 % of the records, one-way shares within ")
    assert words.endswith(" points of the table's.")
    assert errors.within(2) < 3 * noise


def test_intervals_cover_where_the_noise_hides_all_errors() -> None:
    """Noisy sums below zero say that errors are small for the noise, not that none exist."""
    exact, released, cards = made_up(0.5, rows=300)
    truth, counts = (tables(codes, cards) for codes in (exact, released))
    covered = []
    for key in range(20):
        found = measure_accuracy(truth, counts, records=300, mu=0.02, noise=Noise(bytes([key]) * 32))
        errors = CellErrors(found)
        of_key = []
        for order, sets in (
            (1, [(i,) for i in range(5)]),
            (2, list(combinations(range(5), 2))),
            (3, triples_of(cards)),
        ):
            for attributes, real, there in zip(sets, truth.of(order), counts.of(order), strict=True):
                interval = errors.interval(attributes, there)
                of_key.append((interval.low <= real) & (real <= interval.high))
        covered.append(np.concatenate(of_key).mean())
    assert np.mean(covered) > 0.9
    assert min(covered) > 0.7


@pytest.mark.parametrize(("noise", "least"), [(0.01, 90), (1.0, 80)])
def test_cells_of_the_table_are_covered_however_few_records_were_released(noise: float, least: float) -> None:
    """Cells are chosen by their share of the table; the noise of each class's sum is that part of a ninth of all."""
    found = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        truth = np.floor(rng.pareto(1.0, 2000) * 20).astype(np.int64)
        released = np.maximum(np.rint(truth + rng.laplace(scale=4 * np.sqrt(truth + 5))), 0).astype(np.int64)
        rows, records = int(released.sum()), int(truth.sum())
        away, classes = np.abs(truth - released * records / rows), classes_of(released, rows)
        sums, cells, mass = (np.bincount(classes, of, 9) for of in (away, None, released))
        deviation = noise * float(away.sum()) / 9
        noisy = np.rint(sums + rng.normal(0, deviation, 9))
        noisy_sums, numbers, masses = (tuple(of.astype(int).tolist()) for of in (noisy, cells, mass))
        order = Order(2, 1, noisy_sums, deviation, numbers, masses)
        interval = CellErrors(Accuracy(records, rows, (order,))).interval((0, 1), released)
        large = truth > 0.001 * records
        found.append(100 * np.mean(((interval.low <= truth) & (truth <= interval.high))[large]))
    assert np.mean(found) > 95
    assert min(found) > least


def test_a_sum_that_its_noise_hides_gives_an_upper_bound() -> None:
    def stated(total: int) -> float:
        order = Order(1, 1, (*[0] * 8, total), 50.0, (*[0] * 8, 2), (*[0] * 8, 1000))
        return CellErrors(Accuracy(1000, 1000, (order,))).within(1)

    assert stated(99) > 1.3 * stated(101)  # two deviations


def test_cells_without_records_say_nothing_of_the_others() -> None:
    """Nearly all cells of wide tables hold no record, and hardly err. The others' sums are far above their noise."""
    rows, shares = 8_000, np.array([0, 1.7e-4, 5e-4, 1.6e-3, 5e-3, 1.6e-2, 5e-2, 1.4e-1, 4e-1])
    pairs = (24_000, 16_000, 11_000, 8_000, 5_500, 1_900, 1_200, 240, 100)
    triples = (1_200_000, 140_000, 43_000, 22_000, 11_000, 3_200, 1_100, 240, 44)
    orders = []
    for order, deviation, cells, sums in (
        (2, 55_000.0, pairs, (136_000, 125_000, -16_000, 32_000, 44_000, 67_000, 98_000, -54_000, 11_000)),
        (3, 72_000.0, triples, (157_000, 151_000, 195_000, 243_000, 193_000, 153_000, 73_000, -80_000, -29_000)),
    ):
        mass = tuple(np.rint(np.array(cells) * shares * rows).astype(int).tolist())
        orders.append(Order(order, math.comb(22, order), sums, deviation, cells, mass))
    found = CellErrors(Accuracy(rows, rows, tuple(orders))).mean_error((0, 1, 2), np.rint(shares * rows))
    told = found * triples / np.array(orders[1].sums)
    assert told[1:5].min() > 0.75
    assert told[1:5].max() < 1.1


def test_a_class_that_stands_out_beyond_its_noise_is_believed() -> None:
    """Large cells of the one triple that depends as no other does: the curve of all others says nothing of them."""

    def found(deviation: float) -> float:
        sums, cells, mass = (20_000, 6_000, 16_000), (1_000, 200, 8), (400_000, 240_000, 20_000)
        order = Order(3, 56, (*[0] * 5, *sums, 0), deviation, (*[0] * 5, *cells, 0), (*[0] * 5, *mass, 0))
        return float(CellErrors(Accuracy(20_000, 20_000, (order,))).mean_error((0, 1, 2), np.array([2_500]))[0])

    assert 1_500 <= found(2_000) < 2_000  # two deviations of 250 below 2,000
    assert found(10_000) < 200


@pytest.mark.parametrize("noise", [0.05, 0.6])
def test_a_pair_is_no_farther_than_its_upper_bound(noise: float) -> None:
    """Distances of pairs differ by more than their mean; noise hides by how much."""
    counts, pairs, bounded, expected = np.full(36, 200), list(combinations(range(10), 2)), [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        distances = 1000 * np.exp(0.3 * rng.normal(size=45))
        order = Order(
            2,
            45,
            (0,) * 5 + (round(distances.sum()),) + (0,) * 3,
            100.0,
            (0,) * 5 + (36 * 45,) + (0,) * 3,
            (0,) * 5 + (7200 * 45,) + (0,) * 3,
        )
        noisy = tuple(np.rint(distances + rng.normal(0, 1000 * noise, 45)).astype(int).tolist())
        errors = CellErrors(Accuracy(7200, 7200, (order,), noisy, 1000 * noise), dict.fromkeys(pairs, counts))
        bounded.append([errors.distance(pair, counts) >= d for pair, d in zip(pairs, distances, strict=True)])
        expected.append([errors.mean_error(pair, counts).sum() >= d for pair, d in zip(pairs, distances, strict=True)])
    assert np.mean(expected) < 0.7
    assert 0.9 < np.mean(bounded) < 0.995


@pytest.mark.parametrize("far", [0.6, 1.0, 1.6])
def test_the_size_of_triples_errors_is_that_of_their_sums(far: float) -> None:
    """Distances of pairs that are all off in one direction say which triples are worse, not how bad all of them are."""
    table, released, cards = made_up(0.2)
    exact, published = tables(table, cards), tables(released, cards)
    found = measure_accuracy(exact, published, records=40_000, mu=10, noise=Noise(bytes(32)))
    pairs = {pair: published.pairs.pair(*pair).ravel() for pair in combinations(range(5), 2)}
    moved = replace(found, pairs=tuple(round(far * distance) for distance in found.pairs))
    errors, before = CellErrors(moved, pairs), CellErrors(found, pairs)
    triples = list(zip(triples_of(cards), published.of(3), strict=True))
    of_pairs = sum(errors.mean_error(pair, counts).sum() for pair, counts in pairs.items())
    assert of_pairs == pytest.approx(far * sum(before.mean_error(*item).sum() for item in pairs.items()), rel=0.02)
    assert sum(errors.mean_error(*item).sum() for item in triples) == pytest.approx(sum(found.orders[2].sums), rel=0.1)


@pytest.mark.parametrize(("attributes", "parities", "least"), [(16, 60, 0.9), (14, 40, 0.85)])
def test_intervals_cover_triples_that_no_model_was_fitted_to(attributes: int, parities: int, least: float) -> None:
    """Triples tell more than their pairs: errors of those that are not measured are larger. Of 14 attributes 64 triples
    are neither measured nor compared, and a few parities among them decide.
    """
    rng, rows, cards = np.random.default_rng(1), 60_000, (2,) * attributes
    law, kind = rng.random((16, attributes)), rng.integers(0, 16, rows)
    table = [(rng.random(rows) < law[kind, i]).astype(np.uint8) for i in range(attributes)]
    for _ in range(parities):
        a, b, c = rng.choice(attributes, 3, replace=False)
        table[c] = np.where(rng.random(rows) < 0.25, table[a] ^ table[b], table[c])
    chosen = replace(choose(cards, records=rows, mu=2.0), balance=0, pool_rows=20_000, pool_parts=1, iterations=(6,))
    assert chosen.triple_tables == len(halves_of(cards)[0])
    exact, noise, drawing = Tables.counted(table, cards), Noise(bytes([7]) * 32), Noise(bytes([9]) * 32)
    fitted = learn(exact, GaussianAccount(2.0, noise), choices=chosen, drawing=drawing).fitted
    drawn = draw_records(fitted, drawing, 0, rows, rounds=0)
    published = Tables.counted(drawn, cards)
    found = measure_accuracy(exact, published, records=rows, mu=0.4, noise=Noise(bytes([3]) * 32))
    pairs = {pair: published.pairs.pair(*pair).ravel() for pair in combinations(range(attributes), 2)}
    errors, hit = CellErrors(found, pairs), []
    for which in set(combinations(range(attributes), 3)) - set(triples_of(cards)):
        true, counts = (table_counts(codes, cards, (which,)) for codes in (table, drawn))
        interval = errors.interval(which, counts)
        hit.append(((interval.low <= true) & (true <= interval.high))[counts > 0.001 * rows])
    assert np.concatenate(hit).mean() > least


def test_a_measured_cell_has_the_interval_of_its_noise() -> None:
    table, released, cards = made_up(0.5)
    exact, published = tables(table, cards), tables(released, cards)
    found = measure_accuracy(exact, published, records=40_000, mu=0.1, noise=Noise(bytes(32)))
    counts = published.pairs.pair(0, 1).ravel()
    sigma = np.full(36, 5.0)
    sigma[0] = np.inf  # this cell was not measured
    interval = CellErrors(found).interval((0, 1), counts, measured=(np.full(36, 1000.0), sigma))
    np.testing.assert_allclose(interval.high[1:] - interval.low[1:], 2 * 1.96 * 5, rtol=1e-4)
    assert interval.estimate[0] == counts[0]
    assert (interval.estimate[1:] == 1000).all()


def test_an_accuracy_is_json() -> None:
    table, released, cards = made_up(0.1, rows=500)
    found = measure_accuracy(tables(table, cards), tables(released, cards), records=480, mu=0.5, noise=Noise(bytes(32)))
    text = json.dumps(found.to_json())
    assert Accuracy.from_json(json.loads(text)) == found
    with pytest.raises(ValueError, match="edges"):
        Accuracy.from_json(found.to_json() | {"edges": [0.5]})


def test_one_attribute_has_intervals_too() -> None:
    codes: Codes = [np.repeat(np.arange(4), [700, 200, 90, 10]).astype(np.uint8)]
    found = measure_accuracy(tables(codes, (4,)), tables(codes, (4,)), records=1000, mu=0.5, noise=Noise(bytes(32)))
    errors = CellErrors(found)
    assert errors.orders == (1,)
    assert (errors.half_width((0,), np.array([700, 200, 90, 10])) > 0).all()
    assert "one-way shares within" in sentence(errors)
