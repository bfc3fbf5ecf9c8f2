"""Public expectations: combinations, pass rates and bias against brute force; the pass rate of every table."""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from releases import SCHEMA, table

from dpdist.errors import ColumnMismatch, OutOfDomain
from dpdist.families.deniability.expectations import Reference
from dpdist.privacy.deniability import certain_mass, pass_probability
from dpdist.spec.schema import Schema

TABLE = Schema.model_validate(SCHEMA)


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("public") / "last-year.parquet"
    pq.write_table(table(5_000, seed=9), path, row_group_size=1_700)
    return path


def test_zipf_is_independent_with_small_domains_first() -> None:
    reference = Reference.zipf(TABLE)
    assert [TABLE.names[i] for i in reference.order] == ["sex", "employed", "region", "score", "age"]
    assert reference.marginals[0] == pytest.approx(np.array([1, 1 / 2, 1 / 3, 1 / 4]) / (25 / 12))
    found = reference.combinations([0, 4])
    assert found is not None
    assert found.shares == pytest.approx(np.outer(reference.marginals[0], reference.marginals[4]).ravel())
    assert found.shares.sum() == pytest.approx(1)


def test_too_many_combinations_are_not_made() -> None:
    wide = Schema.model_validate(
        {"attributes": [{"name": f"x{i}", "kind": "integer", "bounds": [0, 9_999]} for i in range(8)]}
    )
    assert Reference.zipf(wide).combinations([0, 1]) is None
    codes = [np.zeros(3, np.uint16) for _ in range(8)]
    marginals = Reference.zipf(wide).marginals
    assert Reference("", wide, marginals, codes).combinations(range(8)) is None
    assert Reference("", wide, marginals, codes).combinations(range(4)) is not None


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_a_public_table_has_its_own_frequencies(public: Path, tmp_path: Path, form: str) -> None:
    path = public
    if form == "csv":
        path = tmp_path / "last-year.csv"
        pyarrow.csv.write_csv(pq.read_table(public), path)
    reference = Reference.table(path, TABLE)
    rows = table(5_000, seed=9)
    regions = ["north", "south", "east", "west"]
    assert reference.marginals[0] == pytest.approx([rows["region"].to_pylist().count(r) / 5_000 for r in regions])
    found = reference.combinations([2, 0])
    assert found is not None
    counts: dict[tuple[int, int], int] = {}
    for sex, region in zip(rows["sex"].to_pylist(), rows["region"].to_pylist(), strict=True):
        key = (sex - 1, regions.index(region))
        counts[key] = counts.get(key, 0) + 1
    seen = {(int(a), int(b)): share * 5_000 for a, b, share in zip(*found.values, found.shares, strict=True)}
    assert seen == pytest.approx(counts)
    assert "last-year" in reference.source


def test_a_public_table_must_follow_the_schema(public: Path, tmp_path: Path) -> None:
    pq.write_table(pq.read_table(public).drop_columns(["score"]), tmp_path / "other.parquet")
    with pytest.raises(ColumnMismatch, match="score"):
        Reference.table(tmp_path / "other.parquet", TABLE)
    wrong = pq.read_table(public).slice(0, 3).set_column(3, "score", pa.array([77, 77, 77]))
    pq.write_table(wrong, tmp_path / "wrong.parquet")
    with pytest.raises(OutOfDomain, match="score"):
        Reference.table(tmp_path / "wrong.parquet", TABLE)


def test_pass_rate_and_bias_are_those_of_the_test(public: Path) -> None:
    """Brute force: release many candidates of every combination in proportion to what passes."""
    found = Reference.table(public, TABLE).combinations([2, 4, 0])
    assert found is not None
    test: dict[str, Any] = {"k": 300, "epsilon0": 0.05}
    passing = pass_probability(3_000 * found.shares, **test)
    rate = found.pass_rate(seeds=3_000, **test)
    assert 0.3 < rate < 0.95
    assert rate == pytest.approx(float(found.shares @ passing))
    single, pairs = found.bias(seeds=3_000, **test)
    released = found.shares * passing / rate
    for position, chosen in enumerate([(0,), (1,), (2,), *combinations(range(3), 2)]):
        keys = list(zip(*(found.values[i].tolist() for i in chosen), strict=True))
        distance = sum(
            abs(sum(released[j] - found.shares[j] for j, other in enumerate(keys) if other == key)) for key in set(keys)
        )
        assert [*single, *pairs][position] == pytest.approx(distance / 2)
    assert max(pairs) <= 1 - rate + 1e-12  # of the kept attributes together, so of any two


def test_every_table_has_the_certain_mass() -> None:
    """Random and adversarial divisions of n seeds among combinations; the worst one comes within 1 %."""
    rng = np.random.default_rng(0)
    for k, epsilon0, combinations_ in ((5, 0.5, 8), (40, 0.1, 30), (3, 2.0, 50), (1, 0.02, 4)):
        test: dict[str, Any] = {"k": k, "epsilon0": epsilon0}
        worst = max(range(5 * k + 300), key=lambda c: c * (1 - float(pass_probability(c, **test))))
        seeds = 200 * (worst + 1) * combinations_
        bound = certain_mass(seeds=seeds, combinations=combinations_, **test)
        tables = [
            rng.multinomial(seeds, rng.dirichlet(np.full(combinations_, a))) for a in (0.02, 0.1, 1, 20) for _ in "12"
        ]
        adversary = np.full(combinations_, worst)
        adversary[0] = seeds - adversary[1:].sum()
        for counts in (*tables, adversary):
            mass = float((counts * pass_probability(counts, **test)).sum())
            assert mass >= bound
        lost, allowed = seeds - mass, seeds - bound  # of the adversary
        assert lost >= 0.99 * allowed * (combinations_ - 1) / combinations_
    assert certain_mass(seeds=10, combinations=100, k=50, epsilon0=1) == 0
