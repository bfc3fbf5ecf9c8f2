"""Wide code lists: pairs that do not fit a worker are counted on merged codes; hierarchies give coarse copies."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from releases import KEY
from syntheses import learn

from dpdist.data.count import PairCounts, pair_counts
from dpdist.data.operators import Operator
from dpdist.errors import SpecError
from dpdist.families.base.registry import make_plan
from dpdist.families.synthesis.plan import SynthesisPlan
from dpdist.families.synthesis.stages import stages
from dpdist.ledger import Books
from dpdist.lifecycle.run import run_release
from dpdist.model.account import GaussianAccount
from dpdist.model.choices import MOST_CODED_CELLS, Choices, choose, is_wide
from dpdist.model.coding import SingleCounts, coding_of, recode, single_counts_operator
from dpdist.model.forecast import draws_at_most
from dpdist.model.one_way import OneWay
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise
from dpdist.privacy.selection import Candidates
from dpdist.publish.manifest import MANIFEST, Manifest
from dpdist.spec.attribute import Attribute
from dpdist.spec.reader import load
from dpdist.spec.schema import Schema
from dpdist.spec.undeclared import undeclared
from dpdist.spec.validation import change

CODES = {"a": 20_000, "b": 2_000, "c": 3}


def codes_of(rows: int = 4_000) -> Codes:
    rng = np.random.default_rng(3)
    a = np.minimum(rng.zipf(1.3, rows) - 1, CODES["a"] - 1)
    return [a, (7 * a + rng.integers(0, 5, rows)) % CODES["b"], a % 3]


def wide(folder: Path, **changes: Any) -> SynthesisPlan:
    table = dict(zip(CODES, codes_of(), strict=True))
    pd.DataFrame(table).to_parquet(folder / "table.parquet", row_group_size=300)
    tree = {
        "kind": "synthesis",
        "name": "first",
        "dataset": "people",
        "schema": {
            "attributes": [{"name": n, "kind": "integer", "bounds": [0, size - 1]} for n, size in CODES.items()]
        },
        "data": {"path": str(folder / "table.parquet"), "minimum_records": 3_500},
        "output": {"path": str(folder / "release")},
        "ledger": f"sqlite:///{folder}/ledger.db",
        "work": str(folder / "work"),
        "privacy": {"epsilon": 10, "delta": 1e-9},
    }
    plan = make_plan(load(tree | changes))
    assert isinstance(plan, SynthesisPlan)
    return plan


def noisy(codes: Codes, sigma: float) -> OneWay:
    """One-way tables as they are, said to have so much noise."""
    tables = tuple(np.bincount(c, minlength=n).astype(float) for c, n in zip(codes, CODES.values(), strict=True))
    return OneWay(tables, np.full(3, sigma), float(len(codes[0])))


def single_counts(codes: Codes) -> SingleCounts:
    def count(operator: Operator) -> PairCounts:
        found = operator.chunk(codes)
        return operator.compact(found) if operator.compact else found  # type: ignore[no-any-return]

    cards = tuple(CODES.values())
    return SingleCounts(cards, single_counts_operator(cards).chunk(codes), count)


def test_pairs_of_merged_codes_are_sums_of_the_exact_ones() -> None:
    codes = codes_of()
    found = single_counts(codes)
    np.testing.assert_array_equal(found.single(1), np.bincount(codes[1], minlength=CODES["b"]))
    choices = Choices(mu=1.0)
    coding, tables = found.coded(noisy(codes, 2.0), choices, (), ())
    assert 30 < max(coding.cardinalities) < 1_000
    small = [m[codes[i]] for i, m in zip(coding.source, coding.maps, strict=True)]
    for number, (i, j) in enumerate(tables.pairs):
        exact = np.zeros((coding.cardinalities[i], coding.cardinalities[j]), np.int64)
        np.add.at(exact, (small[i], small[j]), 1)
        np.testing.assert_array_equal(tables.table(number), exact)


def test_a_table_that_fits_has_the_same_pairs_either_way() -> None:
    rng = np.random.default_rng(0)
    codes, cards = [rng.integers(0, n, 500) for n in (40, 30, 5)], (40, 30, 5)
    one_way = OneWay(
        tuple(np.bincount(c, minlength=n) * 1.0 for c, n in zip(codes, cards, strict=True)), np.full(3, 5.0), 500.0
    )

    def count(operator: Operator) -> PairCounts:
        return pair_counts([m[codes[i]] for i, m in zip(coding.source, coding.maps, strict=True)], coding.cardinalities)

    choices = Choices(mu=1.0)
    coding = coding_of(one_way, merge_below=choices.merge_below, coarse=choices.coarse)
    cells = single_counts_operator(cards).chunk(codes)
    other, tables = SingleCounts(cards, cells, count).coded(one_way, choices, (), ())
    assert other.cardinalities == coding.cardinalities
    np.testing.assert_array_equal(tables.cells, recode(pair_counts(codes, cards), coding).cells)
    assert tables.pairs == recode(pair_counts(codes, cards), coding).pairs


def test_more_is_merged_until_pairs_fit() -> None:
    codes = [np.arange(4_000) % n for n in CODES.values()]
    coding, _ = single_counts(codes).coded(noisy(codes, 0.01), Choices(mu=1.0), (), ())
    total = sum(coding.cardinalities)
    assert (total**2 - sum(c * c for c in coding.cardinalities)) // 2 + total <= MOST_CODED_CELLS
    assert draws_at_most(Choices(mu=1.0), tuple(CODES.values())) < 100 * MOST_CODED_CELLS


@pytest.mark.slow
def test_a_release_of_wide_codes_has_the_same_bytes_for_any_partitions(tmp_path: Path) -> None:
    plan = wide(tmp_path)
    assert is_wide(plan.spec.table.cardinalities)
    assert not plan.accuracy_mu
    assert "pairs are counted in a second pass" in plan.explain()
    with closing(Books.open(f"sqlite:///{tmp_path}/ledger.db")) as ledger:
        ledger.create_dataset("people", epsilon="100", delta="1e-6")
    released = []
    for partitions in (1, 5):
        changes = {"name": f"of-{partitions}", "cluster.partitions": partitions}
        changes["output.path"] = str(tmp_path / str(partitions))
        run_release(change(plan.spec, changes), fixed_key=KEY)
        released.append([p.read_bytes() for p in sorted((tmp_path / str(partitions)).rglob("part*.parquet"))])
    assert released[0]
    assert released[0] == released[1]
    told = Manifest.from_bytes((tmp_path / "1" / MANIFEST).read_bytes()).learned["account"]
    assert 0.98 < sum(share for _, share in told) <= 1  # nothing is for the accuracy
    frame = pd.read_parquet(tmp_path / "1")
    assert frame["a"].nunique() > 100
    common = np.bincount(codes_of()[0]).argmax()
    assert abs((frame["a"] == common).mean() - (codes_of()[0] == common).mean()) < 0.15


def test_a_delta_below_what_draws_take_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="the random draws for tables of these domains take up to"):
        wide(tmp_path, privacy={"epsilon": 1, "delta": 1e-12})


def test_one_very_large_pair_is_wide() -> None:
    assert is_wide((60_000, 500, 10))
    assert not is_wide((2_000, 2_000, 10))
    assert not is_wide((100_000,))


def test_more_attributes_than_can_be_merged_are_refused(tmp_path: Path) -> None:
    """Their pairs would not fit with one code each: merging would not end, after the charge."""
    schema = {"attributes": [{"name": f"a{i}", "kind": "integer", "bounds": [0, 59]} for i in range(1_100)]}
    with pytest.raises(SpecError, match="even with two values each"):
        wide(tmp_path, schema=schema)


def test_what_a_record_changes_in_two_passes_is_what_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learning is repeated with the same outputs on a table with a record more: all moves by its weight at most."""
    weight = 7
    tape: list[tuple[list[Any], Any, list[Any]]] = []
    replayed: list[tuple[list[Any], Any, list[Any]]] = []
    spent: list[float] = []

    class Taped(GaussianAccount):
        def measure(self, name: str, tables: Any, **how: Any) -> Any:
            if not replayed:
                tape.append((list(tables), super().measure(name, tables, **how), list(self.lines)))
                return tape[-1][1]
            before, found, self.lines = replayed.pop(0)
            for old, new, sigma in zip(before, tables, found[1], strict=True):
                assert np.abs(new - old).sum() == weight
                spent.append((weight / sigma) ** 2)
            return found

        def pick(self, name: str, candidates: Candidates, **how: Any) -> int:
            scores = list(candidates._scores)
            if not replayed:
                tape.append((scores, super().pick(name, candidates, **how), list(self.lines)))
                return int(tape[-1][1])
            before, found, self.lines = replayed.pop(0)
            assert max(abs(new - old) for old, new in zip(before, scores, strict=True)) <= weight
            return int(found)

    monkeypatch.setattr("syntheses.GaussianAccount", Taped)
    choices = choose(tuple(CODES.values()), records=4_000, mu=1.0, raking=False)
    records = codes_of()
    levels = ((np.arange(CODES["a"]) // 100,), (), ())

    def learnt(codes: Codes) -> None:
        learn(single_counts(codes), choices=choices, noise=Noise(b"n" * 32), drawing=Noise(b"d" * 32), levels=levels)

    learnt(records)
    for record in ((0, 1_999, 2), (19_999, 5, 1)):
        replayed[:], spent[:] = tape, []
        learnt([np.append(column, [value] * weight) for column, value in zip(records, record, strict=True)])
        assert not replayed
        assert 0.9 < sum(spent) / weight**2 <= choices.mu**2


def test_no_prior_goes_with_wide_codes(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="too large to start from"):
        wide(
            tmp_path,
            model={"prior": {"public": "Published by the office of statistics, on its site", "path": "public.parquet"}},
        )


def test_accuracy_is_measured_where_values_that_are_found_are_fewer(tmp_path: Path) -> None:
    """Its share is set aside then, whether or not the columns seemed to be wide."""
    names = [f"a{i}" for i in range(300)]
    texts = {"schema": {"attributes": [undeclared(name, "text") for name in names]}, "discover": {"columns": names}}
    planned = wide(tmp_path, **texts)
    assert is_wide(planned.spec.presumed.cardinalities)
    found = Schema(attributes=tuple(Attribute(name=n, kind="categorical", values=("x", "y")) for n in names))
    known = planned.knowing(change(planned.spec, {"schema": found, "discover": None}), planned.mu**2 / 2)
    assert known.accuracy_mu
    assert "accuracy" in [stage.name for stage in stages(planned)]


# --- hierarchies ------------------------------------------------------------------------------------------------------


def attribute(**changes: Any) -> Attribute:
    return Attribute.model_validate({"name": "code", "kind": "integer", "bounds": [0, 99], **changes})


def test_levels_are_groups_of_codes() -> None:
    found = attribute(levels=[{"width": 5}, {"edges": [0, 50]}], missing={"category": "none"})
    fine, coarse = found.level_maps
    assert fine.tolist() == [code // 5 for code in range(100)] + [20]
    assert coarse.tolist() == [0] * 50 + [1] * 50 + [2]
    named = Attribute(name="code", kind="categorical", values=(110, 120, 230, 900), levels=({"edges": [100, 200]},))
    assert named.level_maps[0].tolist() == [0, 0, 1, 1]
    texts = ("A00", "B01", "A05", "B10", "B1")
    found = attribute(kind="categorical", bounds=None, values=texts, levels=[{"prefix": 2}, {"prefix": 1}])
    assert [m.tolist() for m in found.level_maps] == [[0, 1, 0, 2, 2], [0, 1, 0, 1, 1]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"levels": [{"width": 10}, {"width": 15}]}, "level 2 is no function of level 1"),
        ({"levels": [[0] * 99]}, "expected 100 level numbers"),
        ({"levels": [{"edges": [5, 50]}]}, "level edges start at the lower bound"),
        ({"levels": [{"groups": [[1, 2], [3]]}]}, "one level group, and '0', '4', '5' and 94 more are in none"),
        ({"levels": [{"groups": [list(range(100)), ["x"]]}]}, "one level group, and 'x' is no value"),
        ({"levels": [{"groups": [list(range(100)), [7]]}]}, "one level group, and '7' is there more than once"),
        ({"levels": [{"prefix": 1}]}, "needs values that are texts; group numbers by {edges"),
        (
            {"kind": "categorical", "bounds": None, "values": ["x", "y"], "levels": [{"edges": [0]}]},
            "level edges need an integer",
        ),
        (
            {"kind": "categorical", "bounds": None, "values": [5, 6], "levels": [{"edges": [6]}]},
            "start at the least value or below",
        ),
        ({"kind": "number", "bounds": [0.0, 1.0], "levels": [{"width": 2}]}, "levels and labels of a number"),
    ],
)
def test_hierarchies_that_are_none(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attribute(**changes)


def test_coarse_copies_have_the_groups_of_a_level() -> None:
    """Whose groups are scattered over the codes, which no grouping in code order would find."""
    level = np.arange(100) % 10
    codes = [np.repeat(np.arange(100), 20), np.arange(2_000) % 2]
    tables = tuple(np.bincount(c).astype(float) for c in codes)
    one_way = OneWay(tables, np.full(2, 1.0), 2_000.0)
    coding = coding_of(one_way, merge_below=1.5, coarse=((24, 20),), levels=((level,), ()))
    (copy,) = [k for k, i in enumerate(coding.source) if i == 0 and k not in coding.fine]
    assert coding.cardinalities[copy] == 10
    assert len(set(zip(coding.maps[copy].tolist(), level.tolist(), strict=True))) == 10
    too_fine = coding_of(one_way, merge_below=1.5, coarse=((24, 20),), levels=((np.arange(100) % 50,), ()))
    assert too_fine.cardinalities == coding_of(one_way, merge_below=1.5, coarse=((24, 20),)).cardinalities


def test_merged_values_are_a_group_of_their_own() -> None:
    counts = np.where(np.arange(100) < 90, 50.0, 0.0)
    one_way = OneWay((counts, np.array([2_250.0, 2_250.0])), np.full(2, 10.0), 4_500.0)
    level = np.arange(100) // 25
    coding = coding_of(one_way, merge_below=1.5, coarse=((24, 20),), levels=((level,), ()))
    (copy,) = [k for k, i in enumerate(coding.source) if i == 0 and k not in coding.fine]
    assert coding.cardinalities[copy] == 5
    assert len(set(coding.maps[copy][90:].tolist())) == 1


def test_the_default_choices_rake_no_pairs_of_wide_codes() -> None:
    assert choose((2_000, 2_000, 3), records=10**9, mu=1.0).rake
    assert not choose((20_000, 2_000, 3), records=10**9, mu=1.0).rake
