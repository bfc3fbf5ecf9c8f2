"""Public rows as a pool: when they are used, what is released of them, and what the private table is asked."""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from math import comb, fsum
from typing import Any

import numpy as np
import pytest
from syntheses import learn

from dpdist.accuracy.tables import Tables
from dpdist.data.count import pair_counts
from dpdist.model import public_rows
from dpdist.model.account import GaussianAccount
from dpdist.model.choices import PUBLIC_MISFIT, Choices, choose, with_high, with_prior, without_triples
from dpdist.model.draw import draw_records
from dpdist.model.learn import REST, Learned
from dpdist.model.one_way import OneWay
from dpdist.model.pool import Pool
from dpdist.model.public_rows import FAR, PublicPool, pool_of, towards
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise
from dpdist.spec.schema import Schema

CARDS = (6, 5, 8, 4, 12)
KEY = Noise(bytes(31) + b"1")


def people(rows: int, seed: int, drift: float = 0.0) -> Codes:
    """Records with dependences of three attributes; `drift` is the part of them that has another one."""
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 6, rows), rng.integers(0, 5, rows)
    c = (a + b + rng.binomial(2, 0.4, rows)) % 8
    d = np.where(rng.random(rows) < 0.7, (a * b) % 4, rng.integers(0, 4, rows))
    e = np.minimum(rng.geometric(0.2 + 0.05 * d, rows) - 1, 11)
    other = rng.random(rows) < drift
    c, e = np.where(other, 7 - c, c), np.where(other, 11 - e, e)
    return [column.astype(np.uint8) for column in (a, b, c, d, e)]


def choices(records: int, mu: float = 0.18) -> Choices:
    chosen = choose(CARDS, records=records, mu=mu, raking=False)
    return replace(with_prior(chosen, len(CARDS)), balance=30)


def learned(table: Codes, public: Codes, made: Choices, **known: Any) -> Learned:
    counts, prior = pair_counts(table, CARDS), pair_counts(public, CARDS)
    return learn(counts, choices=made, noise=KEY, drawing=KEY, prior=prior, rows=public, **known)


def distance(one: Codes, other: Codes) -> float:
    pairs = [(pair_counts(codes, CARDS), len(codes[0])) for codes in (one, other)]
    tables = [[found.pair(i, j) / rows for i, j in combinations(range(len(CARDS)), 2)] for found, rows in pairs]
    return float(np.mean([np.abs(a - b).sum() / 2 for a, b in zip(*tables, strict=True)]))


def drawn(found: Learned, rows: int) -> Codes:
    return draw_records(found.fitted, KEY, 0, rows, rounds=30)


def test_released_records_are_public_rows_and_nearer_than_both() -> None:
    table, public = people(6_000, 1), people(6_000, 2, drift=0.06)
    found = learned(table, public, choices(6_000, mu=0.06))
    assert found.report["prior"] == {"records": 6_000, "released": "its rows, reweighted"}
    made = drawn(found, 6_000)
    known = set(zip(*(column.tolist() for column in public), strict=True))
    assert np.mean([row in known for row in zip(*(column.tolist() for column in made), strict=True)]) > 0.97
    alone = learn(pair_counts(table, CARDS), choices=choose(CARDS, records=6_000, mu=0.06), noise=KEY, drawing=KEY)
    assert distance(table, made) < min(distance(table, public), distance(table, drawn(alone, 6_000)))


def test_rows_of_another_population_are_not_released() -> None:
    table, far = people(20_000, 1), [np.zeros(500, np.uint8)] * 5
    found = learned(table, far, choices(20_000, mu=1.0))
    assert found.report["prior"] == {"records": 500, "used": False}
    assert not found.fitted.public
    assert distance(table, drawn(found, 20_000)) < 0.05


def test_rows_of_one_attribute_are_not_released() -> None:
    (table, *_), (public, *_) = people(6_000, 1), people(6_000, 2)
    counts, prior = (pair_counts([column], CARDS[:1]) for column in (table, public))
    made = with_prior(choose(CARDS[:1], records=6_000, mu=1.0), 1)
    found = learn(counts, choices=made, noise=KEY, drawing=KEY, prior=prior, rows=[public])
    assert not found.fitted.public
    assert 1 - 1e-6 < fsum(share for _, share in found.report["account"]) <= 1


def test_where_no_triple_is_compared_pairs_say_which_pool_is_nearer() -> None:
    """A table of two attributes has no triples, also where they would be counted for the accuracy of the records."""
    table, public = people(20_000, 1)[2:4], people(20_000, 2)[2:4]
    made = with_prior(choose(CARDS[2:4], records=20_000, mu=1.0), 2)
    assert made.rake
    found = []
    for counts in (pair_counts(table, CARDS[2:4]), Tables.counted(table, CARDS[2:4])):
        prior = pair_counts(public, CARDS[2:4])
        found.append(learn(counts, choices=made, noise=KEY, drawing=KEY, prior=prior, rows=public))
        assert 1 - 1e-6 < fsum(share for _, share in found[-1].report["account"]) <= 1
    assert found[0].to_bytes() == found[1].to_bytes()


@pytest.mark.parametrize("records", [60, 6_000])
@pytest.mark.parametrize("away", [0.5, 1.1, 2.0])
def test_the_misfit_is_paid_for_once(records: int, away: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it says, all of the account is spent, also where only one-way tables are measured."""
    monkeypatch.setattr(PublicPool, "distance", _said(PublicPool.distance, away))
    found = learned(people(records, 1), people(records, 2), choices(records, mu=0.1))
    are_near = away < 1
    assert bool(found.fitted.public) is are_near
    assert ("used" in found.report["prior"]) is (away > FAR)
    assert bool(choices(records, mu=0.1).rounds) is (records > 60)
    assert 1 - REST < fsum(share for _, share in found.report["account"]) <= 1
    if are_near:
        assert fsum(share for _, share in found.report["account"]) > 1 - 1e-4


def _said(asked: Callable[..., float], said: float) -> Callable[..., float]:
    """What asks, and says something in any case."""

    def ask(*given: Any) -> float:
        asked(*given)
        return said

    return ask


@pytest.mark.parametrize("drift", [0.0, 0.3, 1.0])
def test_drift_is_followed_where_the_budget_allows(drift: float) -> None:
    table, public = people(40_000, 1), people(10_000, 2, drift=drift)
    found = learned(table, public, choices(40_000, mu=2.0))
    assert distance(table, drawn(found, 40_000)) < 0.03


@pytest.mark.parametrize("drift", [0.0, 1.0])
def test_where_triples_are_measured_the_nearer_pool_is_released(drift: float) -> None:
    """Public rows where they know what two groups of values hide, and model rows where they say something else."""
    table, public = people(40_000, 1), people(40_000, 2, drift=drift)
    made = with_prior(choose(CARDS, records=40_000, mu=2.5), len(CARDS))
    assert made.triple_tables
    made = replace(made, triple_groups=2, balance=0)
    counts, prior = Tables.counted(table, CARDS), pair_counts(public, CARDS)
    found = learn(counts, choices=made, noise=KEY, drawing=KEY, prior=prior, rows=public)
    assert bool(found.fitted.public) is ("released" in found.report["prior"]) is (not drift)
    assert fsum(share for _, share in found.report["account"]) <= 1
    assert dict(found.report["account"])["public/misfit"] == pytest.approx(PUBLIC_MISFIT, rel=1e-3)
    assert distance(table, draw_records(found.fitted, KEY, 0, 40_000, rounds=0)) < 0.015


@pytest.mark.parametrize("nearer", [None, True, False])
def test_where_all_pairs_are_measured_the_nearer_pool_is_released(
    nearer: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By pairs where triples are not counted; the whole account is spent, also where no small set is picked."""
    table, public = people(40_000, 1), people(40_000, 2, drift=1.0 if nearer is None else 0.0)
    if nearer is not None:
        monkeypatch.setattr(PublicPool, "is_nearer", _said(PublicPool.is_nearer, nearer))
    made = with_prior(without_triples(choose(CARDS, records=40_000, mu=2.5)), len(CARDS))
    made = with_high(replace(made, balance=0), CARDS)
    assert made.rake
    assert made.of_high > REST
    found = learned(table, public, made)
    assert bool(found.fitted.public) is ("released" in found.report["prior"]) is bool(nearer)
    assert 1 - 1e-6 < fsum(share for _, share in found.report["account"]) <= 1


def test_the_account_holds_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """One record moves the exact tables of all steps by what they cost, and no more."""
    measured: list[tuple[str, list[np.ndarray], np.ndarray]] = []
    measure = GaussianAccount.measure

    def kept(self: GaussianAccount, name: str, tables: Any, **how: Any) -> Any:
        found = measure(self, name, tables, **how)
        measured.append((name, list(tables), found[1]))
        return found

    monkeypatch.setattr(GaussianAccount, "measure", kept)
    table, public = people(6_000, 1), people(60_000, 2)
    made = choices(6_000, mu=0.1)
    found = learned(table, public, made)
    assert sum(share for _, share in found.report["account"]) <= 1
    before, record = list(measured), [column[:1] for column in people(10, 5)]
    longer, total = pair_counts([np.append(c, r) for c, r in zip(table, record, strict=True)], CARDS), 0.0
    pairs = iter([pair for pair in found.report["pairs"]])
    for name, tables, sigmas in before:
        for i, (exact, sigma) in enumerate(zip(tables, sigmas.tolist(), strict=True)):
            if name == "public/misfit":
                moved = float(len(list(combinations(CARDS, 2))))  # each of P distances by 1 at most
            elif name.startswith("one-way"):
                moved = float(np.linalg.norm(longer.single(i) - exact))
            else:
                (a, _), (b, _) = next(pairs)
                moved = float(np.linalg.norm(longer.pair(a, b) - exact))
            total += (moved / sigma) ** 2
    assert total <= made.mu**2
    assert total >= 0.9 * made.mu**2  # the rest pays for picks


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_one_record_moves_the_difference_of_two_pools_by_two_for_each_triple(
    seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most, and that much where a pool has the record too often and the other too rarely; the noise is for it."""
    cards, total = (2, 3, 2, 2), 6
    if seed is None:
        pools, table = [[np.full(total, k, np.uint8)] * 4 for k in (0, 1)], [np.arange(total, dtype=np.uint8) % 2] * 4
    else:
        rng = np.random.default_rng(seed)
        *pools, table = ([rng.integers(0, size, total).astype(np.uint8) for size in cards] for _ in range(3))
    made = choose(cards, records=total, mu=1.0)
    own, other = PublicPool(pools[0], cards, made, total), Pool(pools[1], cards, made, total)
    asked: list[tuple[int, float]] = []
    measure = GaussianAccount.measure

    def kept(self: GaussianAccount, name: str, tables: Any, **how: Any) -> Any:
        found = measure(self, name, tables, **how)
        asked.append((int(tables[0][0]), (1 - self.left) * self.mu**2 * float(found[1][0]) ** 2))
        return found

    monkeypatch.setattr(GaussianAccount, "measure", kept)
    added = [[np.append(c, np.uint8(v)) for c, v in zip(table, row, strict=True)] for row in np.ndindex(cards)]
    for codes in [table, *added, *([np.delete(c, i) for c in table] for i in range(total))]:
        own.is_nearer(other, Tables.counted(codes, cards), GaussianAccount(0.5, KEY))
    triples = comb(len(cards), 3)
    moved = max(abs(difference - asked[0][0]) for difference, _ in asked)
    assert moved <= 2 * triples
    assert moved == 2 * triples or seed is not None
    assert min(paid for _, paid in asked) == pytest.approx((2 * triples) ** 2, rel=1e-9)  # spent for a change of 2T


def test_rules_hold_in_the_pool() -> None:
    values = [list(range(size)) for size in CARDS]
    attributes = [{"name": name, "kind": "ordinal", "values": own} for name, own in zip("abcde", values, strict=True)]
    rules = Schema.model_validate(
        {"attributes": attributes, "rules": [{"impossible": "a = 0 and d = 0"}, {"impossible": "c = 7 and b = 0"}]}
    ).forbidden
    pool = pool_of(people(3_000, 3), rules)
    assert not ((pool[0] == 0) & (pool[3] == 0)).any()
    assert not ((pool[2] == 7) & (pool[1] == 0)).any()


def test_a_large_public_table_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_rows, "MOST_ROWS", 1_000)
    assert 1_000 < len(pool_of(people(5_000, 3))[0]) < 1_100
    monkeypatch.setattr(public_rows, "MODEL_VALUES", 3_000)
    assert 0 < len(CARDS) * len(pool_of(people(5_000, 3))[0]) < 3_000


def test_noisy_counts_are_drawn_towards_public_ones_as_far_as_they_agree() -> None:
    rng = np.random.default_rng(4)
    truth = [rng.gamma(2, 100, size) for size in (6, 40, 9)]
    sigmas = np.array([200.0, 200.0, 2.0])
    noisy = tuple(t + rng.normal(0, s, t.size) for t, s in zip(truth, sigmas, strict=True))
    models = [truth[0], truth[1], truth[2][::-1].copy()]  # of the last the public table is wrong
    found = towards(OneWay(noisy, sigmas, 5_000.0), models)
    for i in (0, 1):
        assert np.abs(found[i] - truth[i]).sum() < 0.5 * np.abs(noisy[i] - truth[i]).sum()
    assert np.abs(found[2] - truth[2]).max() < 10
    assert all((one > 0).all() for one in found)


@pytest.mark.parametrize(
    ("mu", "drift", "least", "most"), [(0.05, 0, 0, 0.5), (0.05, 1, 1, 4), (1, 0, 1, 2.5), (1, 1, 5, 50)]
)
def test_distances_say_how_far_rows_are(mu: float, drift: float, least: float, most: float) -> None:
    """In parts of what is expected without them: more where noise is less, and where the law is another one."""
    made, account = choices(6_000, mu), GaussianAccount(3.0, KEY)
    counts = pair_counts(people(6_000, 1), CARDS)
    exact = OneWay(tuple(counts.single(i).astype(float) for i in range(5)), np.full(5, 0.1), 6_000.0)
    pool = PublicPool.of(pool_of(people(60_000, 2, drift=drift)), CARDS, made, exact)
    assert least < pool.distance(counts, account, made) < most
    hidden = pool.distance(counts, GaussianAccount(0.001, KEY), made)
    assert hidden <= 1  # where noise hides all, rows are taken to be near
