"""Candidates from a pool of model records."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from benchmarks.deniability_claims import release_claim
from releases import KEY, project, table

from dpdist.data.count import pair_counts
from dpdist.data.encode import TableEncoder
from dpdist.errors import SpecError
from dpdist.families.base.registry import make_plan
from dpdist.families.base.rehearsal import rehearse, released_codes
from dpdist.families.deniability import pool as module
from dpdist.families.deniability.claims import claims
from dpdist.families.deniability.deniability import plausible_seeds
from dpdist.families.deniability.plan import PlausibleDeniabilityPlan, plan
from dpdist.families.deniability.pool import PoolPlan, PoolSynthesizer, RecordPool, learn_pool
from dpdist.families.deniability.prefixes import SeedIndex, seed_keys
from dpdist.families.deniability.spec import PlausibleDeniabilitySpec
from dpdist.families.deniability.stages import stages
from dpdist.ledger.keys import KeyRef
from dpdist.lifecycle.run import run_release
from dpdist.privacy import accountant
from dpdist.privacy.arrays import Codes, Counts
from dpdist.privacy.noise import Noise
from dpdist.publish.verify import read_release
from dpdist.spec.validation import change

NOISE = Noise(bytes(range(32)))
SIZES, ORDER, KEPT = (3, 2, 4), (1, 0, 2), 2
PValue = Callable[[np.ndarray, np.ndarray], float]
SETTINGS: dict[str, Any] = {
    "model.structure": "synthesis",
    "split": {"structure": 0, "parameters": 0.6, "seeds": 0.4},
    "synthesis.omega": 3,
}


def weighted(rows: int = 200) -> tuple[list[Counts], Counts]:
    """Rows of a pool of which no row has the prefix (1, 2), and those with (0, 1) weigh nothing."""
    rng = np.random.default_rng(4)
    columns = [rng.integers(0, size, rows) for size in SIZES]
    keep = ~((columns[1] == 1) & (columns[0] == 2))
    columns = [column[keep] for column in columns]
    weights = rng.integers(1, 1 << 40, len(columns[0]))
    return columns, np.where((columns[1] == 0) & (columns[0] == 1), 0, weights)


def every_prefix(times: int) -> Codes:
    """Each combination of kept values, this many times, in the order."""
    pairs = np.array(list(product(range(SIZES[1]), range(SIZES[0]))), np.uint8).repeat(times, axis=0)
    return [np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])]


def test_the_rest_comes_from_rows_with_the_prefix_by_weight(chi_square: PValue) -> None:
    columns, weights = weighted()
    made = PoolSynthesizer(RecordPool.of(columns, weights, SIZES, ORDER, KEPT))
    prefix, times = every_prefix(20_000), 20_000
    candidates = made.propose(NOISE, prefix, 0, 6 * times)
    assert [codes.dtype for codes in candidates.codes] == [np.uint8] * 3
    np.testing.assert_array_equal(candidates.codes[1], prefix[0])
    np.testing.assert_array_equal(candidates.codes[0], prefix[1])
    for place, (b, a) in enumerate(product(range(SIZES[1]), range(SIZES[0]))):
        agreeing = (columns[1] == b) & (columns[0] == a) & (weights > 0)
        if (b, a) in ((1, 2), (0, 1)):
            assert not agreeing.any()
            agreeing = np.ones(len(weights), bool)  # any row
        share = np.bincount(columns[2][agreeing], weights=weights[agreeing] / 2.0**40, minlength=SIZES[2])
        seen = np.bincount(candidates.codes[2][place * times : (place + 1) * times], minlength=SIZES[2])
        assert chi_square(seen, share / share.sum() * times) > 1e-6
        even = np.full(SIZES[2], times / SIZES[2])
        assert chi_square(seen, even) < 1e-6  # the test sees weights that were ignored


def test_a_list_of_a_hundred_thousand_codes() -> None:
    rows = [np.array([0, 1, 1]), np.array([99_999, 70_000, 3])]
    pool = RecordPool.of(rows, np.array([1, 0, 2]), (2, 100_000), (0, 1), 1)
    found = PoolSynthesizer(pool).propose(NOISE, [np.array([0, 1, 1, 0], np.uint8)], 0, 4).codes[1]
    assert found.tolist() == [99_999, 3, 3, 99_999]


def test_seeds_with_the_prefix_are_plausible(random_codes: Callable[..., Codes]) -> None:
    made = PoolSynthesizer(RecordPool.of(*weighted(), SIZES, ORDER, KEPT))
    assert (made.lengths, made.uses_seeds, made.prefix_code.attributes) == ((2,), True, (1, 0))
    seeds = random_codes(1, SIZES, 500)
    index = SeedIndex(made.prefix_code, seed_keys(made.prefix_code, seeds))
    prefix = every_prefix(3)
    candidates = made.propose(NOISE, prefix, 0, 18)
    found = plausible_seeds(made, candidates, index.counts(candidates.codes), gamma=2.0)
    brute = [int(((seeds[1] == b) & (seeds[0] == a)).sum()) for b, a in zip(*prefix, strict=True)]
    assert found.tolist() == brute


def coded(spec: PlausibleDeniabilitySpec) -> Codes:
    """The made-up table as codes."""
    return TableEncoder(spec.table).encode(table(30_011).combine_chunks().to_batches()[0]).codes


@pytest.fixture
def spec(tmp_path: Any) -> PlausibleDeniabilitySpec:
    return project(tmp_path, **{path.replace(".", "__"): value for path, value in SETTINGS.items()})


def test_releases_are_the_same_on_any_executor_and_in_any_partitions(spec: PlausibleDeniabilitySpec) -> None:
    found = []
    for mode, partitions in (("in-process", 1), ("threads", 7)):
        path = f"{spec.output.path}-{mode}-{partitions}"
        settings = {"name": f"{mode}-{partitions}", "cluster.mode": mode, "cluster.partitions": partitions}
        run_release(change(spec, {**settings, "output.path": path}), fixed_key=KEY)
        found.append(read_release(path).to_pydict())
    assert found[0] == found[1]


def test_the_plan_charges_one_gaussian_for_the_model(spec: PlausibleDeniabilitySpec) -> None:
    made = make_plan(spec)
    assert isinstance(made, PlausibleDeniabilityPlan)
    pool = made.model.parameters
    assert isinstance(pool, PoolPlan)
    assert made.model.structure is None
    assert [stage.name for stage in stages(made)] == ["model", "seeds", "records", "write"]
    assert accountant.epsilon(made.model.event, delta=1e-7) == pytest.approx(2, rel=2e-3)
    assert spec.declared_order == ("sex", "employed", "region", "score", "age")  # small first
    assert spec.kept_combinations == 4
    assert "a pool of" in made.explain()
    assert made.public_parameters()["parameters"]["pool_rows"] == pool.choices.pool_rows


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"synthesis.omega": [2, 3]}, "one number of attributes below all of them"),
        ({"synthesis.omega": "all"}, "kind: synthesis resamples all"),
        ({"split": {"structure": 0.1, "parameters": 0.5, "seeds": 0.4}}, "split.structure: expected 0"),
    ],
)
def test_settings_that_a_pool_cannot_have(
    spec: PlausibleDeniabilitySpec, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        change(spec, settings)


def test_too_many_kept_combinations_are_refused(
    spec: PlausibleDeniabilitySpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROWS_EACH", 256)
    order = ["age", "score", "region", "sex", "employed"]
    with pytest.raises(SpecError, match=r"at least 256 for each combination of kept values, and there are 1,280"):
        plan(change(spec, {"model.order": order, "synthesis.omega": 1}))


def test_a_pool_follows_the_table(spec: PlausibleDeniabilitySpec) -> None:
    """The pairs of the rest with what is kept are those of the table, within the noise."""
    codes = coded(spec)
    made = make_plan(spec)
    assert isinstance(made, PlausibleDeniabilityPlan)
    assert isinstance(made.model.parameters, PoolPlan)
    sizes = spec.table.cardinalities
    pool = learn_pool(pair_counts(codes, sizes), made.model.parameters, order=(2, 4, 0, 3, 1), kept=2, noise=NOISE)
    drawn = pool.columns[1][pool.draw([codes[2], codes[4]], NOISE.words("test", len(codes[0])))]
    for kept in (2, 4):
        tables = [
            np.bincount(codes[kept].astype(np.int64) * 100 + age, minlength=200) / len(age) for age in (codes[1], drawn)
        ]
        assert np.abs(tables[0] - tables[1]).sum() / 2 < 0.08
    independent = np.random.default_rng(0).permutation(codes[1])
    far = np.bincount(codes[4].astype(np.int64) * 100 + independent, minlength=200) / len(independent)
    assert np.abs(far - np.bincount(codes[4].astype(np.int64) * 100 + codes[1], minlength=200) / len(far)).sum() > 0.2


def test_its_claims_see_the_model_and_the_records(spec: PlausibleDeniabilitySpec) -> None:
    whole = change(
        spec,
        {
            "privacy.accept_per_record": False,
            "privacy.deniability": {"k": 60, "gamma": 2, "epsilon0": 0.25, "test": "randomised"},
            "synthesis.records": 200,
            "synthesis.minimum_pass_rate": 0.15,
        },
    )
    made = plan(whole)
    assert [claim.name.split()[0] for claim in claims(made)] == ["model", "5"]
    codes = coded(whole)
    seen = release_claim(made, codes, [column[:1] for column in codes]).present(NOISE)
    assert seen[0] == 1.0
    records = released_codes(rehearse(made, stages(made), codes, key=KeyRef.fixed(KEY)))
    assert len(records[0]) == 200
