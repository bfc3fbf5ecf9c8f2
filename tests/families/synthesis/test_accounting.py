"""Whole tiny releases, enumerated: adaptive rounds on all tables of up to four records never exceed their charge."""

import math
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import combinations_with_replacement, product
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
import yaml
from scipy.special import ndtr

from dpdist.data.count import pair_counts
from dpdist.errors import SpecError
from dpdist.families.base.family import SolveRequest
from dpdist.families.synthesis.accuracy import solve
from dpdist.families.synthesis.plan import plan
from dpdist.families.synthesis.spec import WholeSynthesisSpec
from dpdist.model.account import GaussianAccount
from dpdist.model.coding import PairTables, coding_of, recode
from dpdist.model.forecast import draws_at_most
from dpdist.model.one_way import OneWay
from dpdist.privacy.events import ApproximateDP
from dpdist.privacy.noise import SAMPLER_DELTA, Noise
from dpdist.privacy.selection import pick_cost
from dpdist.spec.reader import load

NORMAL = NormalDist()
CARDS = (2, 2, 2)
KINDS = tuple(product(range(2), repeat=3))
STOP = 3
COUNTS, CELLS = range(5), range(4)  # released numbers are clipped to these, which is post-processing


def tables_of(records: tuple[int, ...]) -> PairTables:
    """The pair tables of some records, each the number of a kind."""
    codes = [np.array([KINDS[k][i] for k in records], np.uint8) for i in range(3)]
    coding = coding_of(OneWay(tuple(np.full(2, 9.0) for _ in CARDS), np.ones(3), 9.0), merge_below=0, coarse=())
    return recode(pair_counts(codes, CARDS), coding)


def clipped(count: int, sigma: float, values: range) -> list[float]:
    """Probabilities of a count with rounded Gaussian noise, clipped."""
    edges = [-math.inf, *(v + 0.5 for v in values[:-1]), math.inf]
    below = [NORMAL.cdf((edge - count) / sigma) if math.isfinite(edge) else float(edge > 0) for edge in edges]
    return np.diff(below).tolist()


class Release:
    """One-way tables, then two rounds of one pick and its table; the model of a round depends on what was released.

    Outcomes hold two counts of the first attribute, the picks and one cell of the first table. All other cells have
    plain Gaussian noise and steer nothing.
    """

    def __init__(self, mu: float, *, one_way: float, picks: float, pairs: float) -> None:
        account = GaussianAccount(mu, Noise(bytes(32)))
        self.mu = mu
        self.one_way = float(account.deviations(one_way, [1.0] * 3)[0])
        self.pairs = float(account.deviations(pairs / 2, [1.0])[0])
        self.scale = account.pick_scale(picks, 2)

    def _pick(self, tables: PairTables, model: int, taken: tuple[int, ...]) -> dict[int, float]:
        distances = tables.distances(np.full(12, model)).tolist()
        weights = {k: math.exp((s - 4 * model) / self.scale) for k, s in enumerate(distances) if k not in taken}
        weights[STOP] = 1.0
        total = math.fsum(weights.values())
        return {k: weight / total for k, weight in weights.items()}

    def outcomes(self, records: tuple[int, ...]) -> dict[tuple[int, ...], float]:
        """Exact probability of each outcome."""
        tables = tables_of(records)
        counts = [sum(KINDS[k][0] == value for k in records) for value in range(2)]
        noisy = [clipped(count, self.one_way, COUNTS) for count in counts]
        cell = [clipped(int(tables.table(k)[0, 0]), self.pairs, CELLS) for k in range(3)]
        found: dict[tuple[int, ...], float] = {}
        picks = {model: self._pick(tables, model, ()) for model in range(3)}
        again = {(model, k): self._pick(tables, model, (k,)) for model in range(3) for k in range(3)}
        for x, y in product(COUNTS, repeat=2):
            start = noisy[0][x] * noisy[1][y]
            for first, likely in picks[(x + y) // 4].items():
                if first == STOP:
                    found[x, y, STOP] = start * likely
                    continue
                for z in CELLS:
                    for second, share in again[(x + z) % 3, first].items():
                        found[x, y, first, z, second] = start * likely * cell[first][z] * share
        return found

    def rest(self, outcome: tuple[int, ...], extra: tuple[int, ...], tables: PairTables) -> float:
        """mu^2 of the cells that the outcome leaves out, for a unit of some records more."""
        found = sum(squares(extra, (i,)) for i in (1, 2)) / self.one_way**2
        if outcome[2] == STOP:
            return found
        first = tables.pairs[outcome[2]]
        inside = sum(all(KINDS[k][i] == 0 for i in first) for k in extra)
        found += (squares(extra, first) - inside**2) / self.pairs**2
        return found + (0 if outcome[4] == STOP else squares(extra, tables.pairs[outcome[4]]) / self.pairs**2)


@cache
def squares(extra: tuple[int, ...], attributes: tuple[int, ...]) -> int:
    """Square of the L2 distance by which records move a table."""
    return sum(n**2 for n in Counter(tuple(KINDS[k][i] for i in attributes) for k in extra).values())


def largest_delta(p: np.ndarray, q: np.ndarray, rest: np.ndarray, epsilon: float) -> float:
    """delta of outcomes (p, q), each with an independent Gaussian statistic beside it, in the worse direction."""
    root = np.sqrt(rest)
    worst = 0.0
    for ours, theirs in ((p, q), (q, p)):
        left = epsilon - np.log(ours / theirs)
        tail = ours * ndtr(root / 2 - left / root) - math.exp(epsilon) * theirs * ndtr(-root / 2 - left / root)
        worst = max(worst, float(tail.sum()))
    return worst


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mu", "shares", "unit"),
    [
        (1.2, {"one_way": 0.3, "picks": 0.3, "pairs": 0.4}, 1),
        (2.0, {"one_way": 0.1, "picks": 0.6, "pairs": 0.3}, 1),
        (1.2, {"one_way": 0.3, "picks": 0.3, "pairs": 0.4}, 2),
    ],
)
def test_adaptive_releases_of_all_small_tables_cost_no_more(mu: float, shares: dict[str, float], unit: int) -> None:
    """A unit has this many records; each may have that part of mu."""
    release = Release(mu / unit, **shares)
    epsilons = [0.0, 1.0]
    limits = [float(ndtr(mu / 2 - e / mu) - math.exp(e) * ndtr(-mu / 2 - e / mu)) for e in epsilons]
    everything = [t for size in range(5) for t in combinations_with_replacement(range(8), size)]
    found = {records: release.outcomes(records) for records in everything}
    names = list(found[()])
    vectors = {records: np.array([outcomes[name] for name in names]) for records, outcomes in found.items()}
    units = list(combinations_with_replacement(range(8), unit))
    rests = {extra: np.array([release.rest(name, extra, tables_of(())) for name in names]) for extra in units}
    worst = 0.0
    for records in everything:
        np.testing.assert_allclose(vectors[records].sum(), 1)
        for extra in units if unit == 1 or len(records) < 2 else ():
            if len(records) + len(extra) > 4:
                continue
            more = vectors[tuple(sorted((*records, *extra)))]
            for epsilon, limit in zip(epsilons, limits, strict=True):
                delta = largest_delta(vectors[records], more, rests[extra], epsilon)
                assert delta <= limit
                worst = max(worst, delta / limit)
    assert worst > 0.7


def test_a_pick_on_a_tiny_table_attains_its_charge() -> None:
    """One record takes one pair's table away from its model and another's towards it."""
    model = np.zeros(12, np.int64)
    model[4:8] = [9, 0, 0, 0]  # of the second pair
    before, after = (tables_of((0,) * records).distances(model).tolist()[:2] for records in (4, 5))
    assert (before, after) == ([4, 5], [5, 4])
    for scale in (0.8, 2.0, 30.0):
        p, q = (1 / (1 + math.exp((s[1] - s[0]) / scale)) for s in (after, before))
        attained = NORMAL.inv_cdf(p) - NORMAL.inv_cdf(q)  # the least m of two coins
        assert 0.9 * pick_cost(scale=scale) < attained <= pick_cost(scale=scale)


# --- The epsilon for a stated accuracy


SIZES = (51, 79, 8, 24, 5, 25, 5, 2, 99, 2, 2)


def spec_of(
    records: int = 1_200_000,
    released: int = 1_000_000,
    epsilon: float = 1.0,
    *,
    sizes: tuple[int, ...] = SIZES,
    delta: float = 1e-9,
) -> WholeSynthesisSpec:
    attributes = [{"name": f"a{i}", "kind": "categorical", "values": [*range(size)]} for i, size in enumerate(sizes)]
    tree = {
        "kind": "synthesis",
        "name": "s",
        "dataset": "d",
        "schema": {"attributes": attributes},
        "data": {"path": "x.csv", "minimum_records": records},
        "output": {"path": "out"},
        "privacy": {"epsilon": epsilon, "delta": delta},
        "synthesis": {"records": released},
    }
    spec = load(tree)
    assert isinstance(spec, WholeSynthesisSpec)
    return spec


def test_the_charge_holds_all_draws_of_what_is_done() -> None:
    """With more noise triples may be measured that are not with less: these draws are charged, too."""
    rng = np.random.default_rng(4)
    domains = [((24,) * 12, 706_563, 1e-10)]
    for _ in range(40):
        sizes = tuple(rng.choice([2, 5, 9, 24, 60], int(rng.integers(5, 14))).tolist())
        domains.append((sizes, int(10 ** rng.uniform(3.5, 7)), float(10 ** rng.uniform(-12, -9))))
    for sizes, records, delta in domains:
        found = plan(spec_of(records, sizes=sizes, delta=delta))
        (lost,) = (event for event in found.event.events if isinstance(event, ApproximateDP))
        assert draws_at_most(found.choices, sizes) * SAMPLER_DELTA <= lost.delta


def test_more_records_and_more_epsilon_are_expected_to_be_closer() -> None:
    errors = [plan(spec_of(epsilon=epsilon)).expected for epsilon in (0.1, 1.0, 3.0, 8.0)]
    assert [one.error for one in errors] == sorted((one.error for one in errors), reverse=True)
    assert len({one.sampling for one in errors}) == 1
    fewer = plan(spec_of(released=10_000)).expected
    assert fewer.sampling > 3 * errors[1].sampling
    assert fewer.noise == errors[1].noise
    assert plan(spec_of(records=50_000)).expected.noise > 5 * errors[1].noise
    # what a release of the ACS 2024 has: .0181, .0052, .0031, .0023
    for one, real in zip(errors, (0.0181, 0.0052, 0.0031, 0.0023), strict=True):
        assert 0.6 < one.error / real < 1.7


@pytest.mark.parametrize("accuracy", [0.02, 0.006, 0.0035])
def test_the_least_epsilon_reaches_the_accuracy(accuracy: float) -> None:
    request = SolveRequest(accuracy=accuracy, source=Path("unused"))
    found = solve(spec_of(), request)
    assert found.plan.expected.error <= accuracy
    less = plan(spec_of(epsilon=0.98 * found.plan.spec.privacy.epsilon)).expected
    assert less.error > accuracy
    assert found.to_json()["epsilon"] == found.plan.spec.privacy.epsilon
    assert ("Noise limits" in found.explain()) == (found.plan.expected.noise >= found.plan.expected.sampling)


def test_what_cannot_be_reached_is_refused_with_what_to_do() -> None:
    with pytest.raises(SpecError, match=r"sampling alone leaves .*synthesis\.records"):
        solve(spec_of(released=2_000), SolveRequest(accuracy=0.003, source=Path("unused")))
    with pytest.raises(SpecError, match=r"data\.minimum_records"):
        solve(spec_of(records=2_000), SolveRequest(accuracy=0.005, source=Path("unused")))
    for wrong, words in ((None, "--accuracy 0.01 finds"), (0.0, "between 0 and 1"), (1.0, "between 0 and 1")):
        with pytest.raises(SpecError, match=words):
            solve(spec_of(), SolveRequest(accuracy=wrong, source=Path("unused")))


def test_by_the_command_line(tmp_path: Path, dpdist: Callable[..., object]) -> None:
    source, found = tmp_path / "spec.yaml", tmp_path / "found.yaml"
    tree = spec_of().model_dump(mode="json", by_alias=True, exclude_defaults=True)
    source.write_text(yaml.safe_dump(tree))
    shown = dpdist("plan", str(source), "--accuracy", "0.006", "--write", str(found))
    assert "Expected" in shown.out  # type: ignore[attr-defined]
    assert load(found).privacy.epsilon < 1  # type: ignore[attr-defined]
