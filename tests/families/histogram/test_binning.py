"""Adaptive bins: what their choice costs is enumerated, cuts are even, and nothing but the key changes a bit."""

import json
import math
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from attempts import attempt_of, run_stages
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from releases import fund

from dpdist.data.operators import Operator
from dpdist.errors import AccountingError, SpecError, VerificationFailed
from dpdist.evaluation.request import Request
from dpdist.evaluation.run import run_evaluation
from dpdist.families.base.attempt import Attempt
from dpdist.families.base.registry import family_of, make_plan
from dpdist.families.histogram.binning import (
    FAN_OUT,
    BinningPlan,
    choose,
    even_bins,
    fitted_masses,
    level_sizes,
    noisy_levels,
)
from dpdist.families.histogram.claims import bins_claim, canaries
from dpdist.families.histogram.measurement import changed_cells
from dpdist.families.histogram.plan import HistogramPlan
from dpdist.families.histogram.stages import truth
from dpdist.lifecycle.run import run_release
from dpdist.privacy import accountant
from dpdist.privacy.noise import Noise
from dpdist.privacy.testing import audit
from dpdist.spec.reader import load

NOISE = Noise(bytes(range(32)))
KEY = bytes(range(32)).hex()
SCHEMA: dict[str, Any] = {
    "attributes": [
        {"name": "pay", "kind": "integer", "bounds": [0, 999], "missing": {"category": "?"}},
        {"name": "sex", "kind": "categorical", "values": ["F", "M"]},
        {"name": "rate", "kind": "number", "bounds": [0, 1], "bins": {"count": 40}},
        {"name": "grade", "kind": "ordinal", "values": ["a", "b", "c", "d", "e"]},
        {"name": "cost", "kind": "number", "bounds": [0, 1]},
    ]
}
QUERIES = [
    {"columns": ["sex", "pay"], "adaptive": {"pay": 6}},
    {"columns": ["pay"], "adaptive": {"pay": 20}},
    {"columns": ["rate", "grade"], "adaptive": {"rate": 4, "grade": 2}},
    {"columns": ["sex"]},
]
ROWS = 20_000


def tree(**changes: Any) -> dict[str, Any]:
    made = {
        "kind": "histogram",
        "name": "h",
        "dataset": "d",
        "schema": SCHEMA,
        "data": {"path": "t", "minimum_records": 15_000, "extra_columns": "ignore"},
        "output": {"path": "o"},
        "privacy": {"epsilon": 1, "delta": 1e-9},
        "histograms": QUERIES,
        **changes,
    }
    return {name: value for name, value in made.items() if value is not None}


def planned(**changes: Any) -> HistogramPlan:
    plan = make_plan(load(tree(**changes)))
    assert isinstance(plan, HistogramPlan)
    return plan


def binning(codes: int, bins: int = 2, **changes: Any) -> BinningPlan:
    """The choice of bins of one column of this many codes."""
    schema = {"attributes": [{"name": "x", "kind": "integer", "bounds": [1, codes]}]}
    made = planned(schema=schema, histograms=[{"columns": ["x"], "adaptive": {"x": bins}}], **changes).binning
    assert made is not None
    return made


MASSES = st.lists(st.one_of(st.just(0.0), st.floats(0, 100), st.just(1e4)), min_size=3, max_size=40)


@given(masses=MASSES, data=st.data())
@example(masses=[0.0] * 30, data=None)
@settings(max_examples=80, deadline=None)
def test_there_are_as_many_bins_as_asked_for(masses: list[float], data: Any) -> None:
    counts = range(2, len(masses)) if data is None else [data.draw(st.integers(2, len(masses) - 1))]
    for count in counts:
        bins = even_bins(np.array(masses), count)
        assert len(bins) == count
        assert bins[0] == 0
        assert bins[-1] < len(masses)
        assert (np.diff(bins) > 0).all()


def heaviest(masses: np.ndarray, starts: tuple[int, ...] | np.ndarray) -> float:
    """The mass of the heaviest bin of several codes."""
    ends = [*starts, masses.size]
    return max([masses[a:b].sum() for a, b in pairwise(ends) if b - a > 1], default=0.0)


@given(masses=st.lists(st.integers(0, 30), min_size=4, max_size=9), count=st.integers(2, 5))
@settings(max_examples=40, deadline=None)
def test_bins_are_nearly_as_even_as_the_best(masses: list[int], count: int) -> None:
    """By brute force over all cuts: what bins of several codes hold is at most the best and two codes more."""
    values, count = np.array(masses, float), min(count, len(masses) - 1)
    best = min(heaviest(values, (0, *cuts)) for cuts in combinations(range(1, len(masses)), count - 1))
    light = np.sort(values)[: -((count - 1) // 2) or None].max()
    assert heaviest(values, even_bins(values, count)) <= 2 * best + 2 * light


def test_heaps_are_bins_of_their_own() -> None:
    masses = np.ones(1000)
    masses[[0, 400, 700]] = 5_000, 3_000, 900
    bins = even_bins(masses, 20)
    assert {0, 1, 400, 401, 700, 701} <= set(bins.tolist())
    sizes = [masses[a:b].sum() for a, b in pairwise([*bins, 1000]) if b - a > 1]
    assert max(sizes) < 1.5 * np.median(sizes)


@pytest.mark.parametrize("codes", [2, 16, 17, 256, 257, 5000])
def test_levels_are_sums_of_sixteen(codes: int) -> None:
    sizes = level_sizes(codes)
    assert sizes[0] == codes
    assert sizes[-1] <= FAN_OUT
    assert all(b == math.ceil(a / FAN_OUT) for a, b in pairwise(sizes))
    plan = binning(max(codes, 3), privacy={"epsilon": 1e6})
    counts = np.random.default_rng(codes).integers(0, 50, plan.grids[0].codes)
    levels = noisy_levels(counts, plan, 0, noise=NOISE)
    for above, below in pairwise(reversed(levels)):
        assert above.tolist() == [below[i : i + FAN_OUT].sum() for i in range(0, below.size, FAN_OUT)]
    fitted = fitted_masses(levels, deviations=plan.level_deviations(0))
    np.testing.assert_allclose(fitted, counts, atol=1e-6)


def test_fitted_masses_are_nearer_than_the_codes_alone() -> None:
    plan = binning(2000, privacy={"epsilon": 0.3})
    counts = np.zeros(2000, np.int64)
    counts[300:420] = 60
    levels = noisy_levels(counts, plan, 0, noise=NOISE)
    errors = [
        np.abs(np.cumsum(masses) - np.cumsum(counts)).max()
        for masses in (fitted_masses(levels, deviations=plan.level_deviations(0)), np.maximum(levels[0], 0))
    ]
    assert errors[0] < errors[1] / 10
    assert (fitted_masses(levels, deviations=plan.level_deviations(0)) >= 0).all()


@pytest.mark.parametrize(
    ("adjacency", "codes", "unit"),
    [
        ("add/remove", 3, 1),
        ("add/remove", 18, 1),
        ("add/remove", 18, 2),
        ("add/remove", 260, 1),
        ("replacement", 3, 1),
        ("replacement", 18, 1),
        ("replacement", 260, 1),
    ],
)
def test_neighbours_differ_in_the_levels_by_what_is_charged(adjacency: Any, codes: int, unit: int) -> None:
    """All neighbours of a table, over all levels: with the noise of the plan none exceeds the event, and some attain
    it.
    """
    protected = {} if unit == 1 else {"unit": {"by": "id", "at_most": unit}}
    plan = binning(codes, privacy={"epsilon": 1, "adjacency": adjacency, "mechanism": "laplace"}, **protected)
    levels = plan.grids[0].levels

    def nodes(table: np.ndarray) -> np.ndarray:
        out = [table]
        for _ in levels[1:]:
            out.append(np.add.reduceat(out[-1], np.arange(0, out[-1].size, FAN_OUT)))
        assert [level.size for level in out] == list(levels)
        return np.concatenate(out)

    base = np.full(codes, 5)
    places = list(range(codes)) if codes < 100 else [0, 1, 15, 16, 255, 256, codes - 1]
    ones = [np.bincount([place], minlength=codes) for place in places]
    changes = [sum(chosen) for chosen in combinations(ones, unit)] + [one * unit for one in ones]
    if adjacency == "replacement":
        changes = [a - b for a, b in product(ones, ones)]
    differences = [np.abs(nodes(base + change) - nodes(base)) for change in changes]
    scales = np.concatenate([np.full(size, scale) for size, scale in zip(levels, plan.scales[0], strict=True)])
    worst = max(float((difference / scales).sum()) for difference in differences)
    stated = accountant.epsilon(plan.event, delta=1e-15)
    assert worst == pytest.approx(1 / 3, rel=1e-9)  # the share of the choice, attained
    assert worst <= stated * (1 + 1e-9)
    assert max(float((d**2).sum()) for d in differences) == len(levels) * unit**2 * changed_cells(adjacency)


def test_the_whole_output_is_within_the_charge_and_beyond_that_of_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chosen bins and noisy counts in them, by their exact probabilities, on tables of three codes."""
    monkeypatch.setattr("dpdist.families.histogram.binning.BINS_SHARE", Fraction(1, 2))
    schema = {"attributes": [{"name": "x", "kind": "integer", "bounds": [1, 3]}]}
    plan = planned(schema=schema, histograms=[{"columns": ["x"], "adaptive": {"x": 2}}], privacy={"epsilon": 1.8})
    assert plan.binning is not None
    assert plan.measurement is not None
    reach = 11
    outputs = np.array(list(product(range(-reach, reach + 1), repeat=3)))
    scale, sd = plan.binning.scales[0][0], plan.binning.level_deviations(0)
    found = [even_bins(fitted_masses([output], deviations=sd), 2) for output in outputs]
    first = np.array([bins[1] for bins in found])

    def chances(table: np.ndarray) -> dict[int, float]:
        mass = np.exp(-np.abs(outputs - table).sum(axis=1) / scale)
        return {cut: float(mass[first == cut].sum()) for cut in (1, 2)}

    def counts(table: np.ndarray, cut: int) -> np.ndarray:
        return np.array([table[:cut].sum(), table[cut:].sum()])

    own = 1 / plan.measurement.scales[0]
    worst = 0.0
    for values in product(range(3), repeat=3):
        table = np.array(values)
        for place in range(3):
            other = table + np.bincount([place], minlength=3)
            one, two = chances(table), chances(other)
            for cut in (1, 2):
                moved = float(np.abs(counts(other, cut) - counts(table, cut)).sum()) * own  # attained by large counts
                worst = max(worst, abs(math.log(one[cut] / two[cut])) + moved)
    assert own == pytest.approx(0.9, rel=1e-9)
    assert 0.9 * 1.2 < worst <= 1.8  # so the choice says something that must be charged, and no more than its share
    assert plan.epsilon == pytest.approx(1.8, rel=1e-6)


@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_each_level_has_the_planned_noise_from_a_stream_of_its_own(mechanism: str) -> None:
    plan = planned(privacy={"epsilon": 1, "delta": 1e-6, "mechanism": mechanism}).binning
    assert plan is not None
    for place, (grid, scales) in enumerate(zip(plan.grids, plan.scales, strict=True)):
        noisy = noisy_levels(np.zeros(grid.codes, np.int64), plan, place, noise=NOISE)
        for level, (found, scale) in enumerate(zip(noisy, scales, strict=True)):
            name = f"histogram/bins/{place}/{level}"
            if mechanism == "laplace":
                drawn = NOISE.discrete_laplace(name, found.size, scale=scale)
            else:
                drawn = NOISE.gaussian_integers(name, found.size, sigma=scale)
            np.testing.assert_array_equal(found, drawn)


@pytest.mark.parametrize("adjacency", ["add/remove", "replacement"])
@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_the_audit_comes_near_and_rejects_too_little_noise(adjacency: Any, mechanism: str) -> None:
    delta = 0.05 if mechanism == "gaussian" else 0
    privacy = {"epsilon": 6, "delta": delta, "mechanism": mechanism, "adjacency": adjacency}
    plan = binning(40, privacy=privacy)
    shipped = bins_claim(plan, adjacency=adjacency, delta=delta or 1e-12)
    found = audit(shipped, runs=1500, key=bytes(32))
    assert not found.rejected
    assert found.lower_bound > 0.2 * shipped.epsilon
    louder = bins_claim(plan.with_less_noise(3), adjacency=adjacency, delta=delta or 1e-12)
    assert audit(replace(louder, epsilon=shipped.epsilon), runs=1500, key=bytes(32)).rejected


def test_a_plan_says_what_the_choice_takes() -> None:
    made = planned()
    assert made.binning is not None
    assert [grid.name for grid in made.binning.grids] == ["pay", "rate", "grade"]
    assert made.cells == (2 * 7, 21, 4 * 2, 2)
    text = " ".join(made.explain().split())
    assert "6, 20 of pay, from 1,000 values: chosen from 3 levels of noisy counts" in text
    assert "their choice takes 1/3 of the budget" in text
    parameters = json.loads(json.dumps(made.public_parameters()))
    assert parameters["bins"]["share"] == "1/3"
    assert [column["levels"] for column in parameters["bins"]["columns"]] == [3, 2, 1]
    assert [entry["cells"] for entry in parameters["histograms"]] == [14, 21, 8, 2]
    assert 0.97 < made.epsilon <= 1
    assert planned(privacy={"epsilon": 1}).epsilon == pytest.approx(1, rel=1e-9)


def test_shares() -> None:
    plan = planned(privacy={"epsilon": 1, "mechanism": "laplace"})
    assert plan.binning is not None
    assert plan.measurement is not None
    assert sum(1 / scale for scales in plan.binning.scales for scale in scales) == pytest.approx(1 / 3)
    assert sum(1 / scale for scale in plan.measurement.scales) == pytest.approx(2 / 3)
    with pytest.raises(AccountingError, match="adaptive bins leave nothing for"):
        planned(privacy={"epsilon": 1, "delta": 1e-9}, entropies={"share": 0.7})


def test_units_and_weights_take_as_much_noise_as_records() -> None:
    pure = {"epsilon": 1}
    one = planned(privacy=pure)
    many = planned(privacy=pure, unit={"by": "id", "at_most": 4})
    heavy = planned(privacy=pure, weight={"by": "w", "at_most": 7})
    for plan, factor in ((many, 4), (heavy, 7)):
        assert plan.binning is not None
        assert one.binning is not None
        assert plan.binning.scales[0][0] == pytest.approx(factor * one.binning.scales[0][0], rel=1e-9)
        assert plan.epsilon == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"histograms": [{"columns": ["pay"], "adaptive": {"sex": 2}}]}, "has no column 'sex'"),
        ({"histograms": [{"columns": ["sex"], "adaptive": {"sex": 2}}]}, "'sex' have no order; declare kind ordinal"),
        ({"histograms": [{"columns": ["cost"], "adaptive": {"cost": 2}}]}, "declare public `bins`"),
        ({"histograms": [{"columns": ["pay"], "adaptive": {"pay": 1}}]}, "at least 2"),
        ({"histograms": [{"columns": ["grade"], "adaptive": {"grade": 5}}]}, "has 5 values, which 5 bins do not merge"),
        ({"histograms": [{"columns": ["pay"], "adaptive": {"pay": 2.5}}]}, "integer"),
        ({"histograms": [{"columns": ["pay"], "adaptive": {"pay": 2}, "buckets": True}]}, "leave one out"),
        (
            {"privacy": {"epsilon": 1, "mechanism": "pml", "alpha": 0.01, "adjacency": "replacement"}},
            "chosen from the data have no assumption",
        ),
        ({"counts": {"hierarchies": [[0, 3]]}}, "no public sums of cells"),
    ],
)
def test_a_spec_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((ValidationError, SpecError), match=message):
        load(tree(**changes))


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    pay = np.where(rng.random(ROWS) < 0.4, 0, np.minimum(rng.exponential(120, ROWS), 999)).astype(int)
    codes = {
        "pay": np.where(rng.random(ROWS) < 0.1, 1000, pay),
        "sex": rng.integers(0, 2, ROWS),
        "rate": np.minimum((rng.beta(2, 8, ROWS) * 40).astype(int), 39),
        "grade": rng.choice(5, ROWS, p=[0.1, 0.1, 0.6, 0.1, 0.1]),
    }
    folder = tmp_path_factory.mktemp("people")
    table = pa.table(
        {
            "pay": pa.array(codes["pay"], mask=codes["pay"] == 1000),
            "sex": np.array(["F", "M"])[codes["sex"]],
            "rate": (codes["rate"] + 0.5) / 40,
            "grade": np.array(list("abcde"))[codes["grade"]],
            "cost": rng.random(ROWS),
            "id": np.arange(ROWS) // 3,
            "w": np.full(ROWS, 2),
        }
    )
    pq.write_table(table, folder / "people.parquet", row_group_size=3000)
    return folder, codes


def attempt(folder: Path, tmp_path: Path, *, partitions: int = 3, key: str = KEY, **changes: Any) -> Attempt[Any, Any]:
    data = {"path": str(folder), "minimum_records": 15_000, "extra_columns": "ignore"}
    made = load(tree(data=data, output={"path": str(tmp_path / "out")}, **changes))
    return attempt_of(made, tmp_path, partitions=partitions, key=key)


def released(made: Attempt[Any, Any]) -> pa.Table:
    run_stages(made)
    return pa.concat_tables([pq.read_table(pa.BufferReader(made.output.read_bytes(p.name))) for p in made.parts])


def summary(made: Attempt[Any, Any], codes: dict[str, np.ndarray]) -> tuple[Operator, list[Any]]:
    operator, _ = truth(made.plan, made.public)
    columns = [codes.get(name, np.zeros(ROWS)) for name in made.spec.table.names]
    whole = operator.chunk(columns)
    return operator, operator.finish(whole) if operator.finish else whole


def test_a_release_states_its_bins_and_counts_in_them(
    people: tuple[Path, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    folder, codes = people
    made = attempt(folder, tmp_path, privacy={"epsilon": 4, "delta": 1e-9})
    table = released(made).to_pylist()
    assert [row["of"] for row in table] == ["sex x pay (6 bins)"] * 14 + ["pay (20 bins)"] * 21 + [
        "rate (4 bins) x grade (2 bins)"
    ] * 8 + ["sex"] * 2
    stated = {(entry["histogram"], entry["column"]): entry["first_codes"] for entry in made.public["chosen_bins"]}
    assert sorted(stated) == [(0, "pay"), (1, "pay"), (2, "grade"), (2, "rate")]
    cells = [row["cell"] for row in table]
    first = stated[1, "pay"]
    ends = [*(start - 1 for start in first[1:]), 999]
    assert cells[14:35] == [str(a) if a == b else f"{a}..{b}" for a, b in zip(first, ends, strict=True)] + ["?"]
    assert cells[14] == "0"  # the heap is a bin of its own
    assert cells[6] == "F | ?"
    edges = [*np.linspace(0, 1, 41)[[*stated[2, "rate"]]].tolist(), 1.0]
    grades = [stated[2, "grade"][1]]
    named = [
        "a" if grades[0] == 1 else f"a .. {'abcde'[grades[0] - 1]}",
        "e" if grades[0] == 4 else f"{'abcde'[grades[0]]} .. e",
    ]
    assert cells[35:43] == [f"{a}..{b} | {name}" for a, b in pairwise(edges) for name in named]
    counts = np.histogram(codes["pay"], [*first, 1000, 1001])[0]
    noisy = np.array([row["noisy"] for row in table[14:35]])
    assert np.abs(noisy - counts).max() < 20 * made.plan.deviations[1]
    assert not np.array_equal(noisy, counts)
    assert counts[1:-1].max() < 2.5 * np.median(counts[1:-1])
    _, found = summary(made, codes)
    truths = truth(made.plan, made.public)[1](found)
    np.testing.assert_array_equal(truths[1][2], counts)
    assert sum(len(values) for _, _, values in truths) == len(table)
    assert np.abs(np.concatenate([values for _, _, values in truths]) - [row["noisy"] for row in table]).max() < 60


def test_labels_and_codes_name_bins(people: tuple[Path, dict[str, np.ndarray]], tmp_path: Path) -> None:
    folder, _ = people
    query = [{"columns": ["pay"], "adaptive": {"pay": 3}}]
    output = {"path": str(tmp_path / "out"), "values": "codes"}
    made = load(
        tree(
            data={"path": str(folder), "minimum_records": 9, "extra_columns": "ignore"}, output=output, histograms=query
        )
    )
    done = attempt_of(made, tmp_path, partitions=1, key=KEY)
    cells = released(done)["cell"].to_pylist()
    first = done.public["chosen_bins"][0]["first_codes"]
    assert cells[-1] == "1000"
    assert cells[-2] == f"{first[2]} .. 999"


@pytest.mark.parametrize(
    ("changes", "records"),
    [({"weight": {"by": "w", "at_most": 3}}, 2 * ROWS), ({"unit": {"by": "id", "at_most": 2}}, ROWS * 2 // 3)],
)
def test_weights_and_units_are_counted_as_they_are_elsewhere(
    changes: dict[str, Any], records: int, people: tuple[Path, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    fund(url, "d", epsilon="100", delta="1e-3")
    data = {"path": str(people[0] / "people.parquet"), "minimum_records": 10_000, "extra_columns": "ignore"}
    found = []
    for partitions in (1, 5):
        made = load(
            tree(
                name=f"h{partitions}",
                data=data,
                output={"path": str(tmp_path / str(partitions))},
                ledger=url,
                work=str(tmp_path / "work"),
                cluster={"mode": "in-process", "partitions": partitions},
                privacy={"epsilon": 8, "delta": 1e-6},
                **changes,
            )
        )
        run_release(made, fixed_key=KEY)
        [part] = (tmp_path / str(partitions)).rglob("part*.parquet")
        manifest = json.loads((tmp_path / str(partitions) / "_manifest.json").read_text())
        found.append((pq.read_table(part), manifest["parameters"]["chosen_bins"]))
    assert found[0][0].equals(found[1][0])
    assert found[0][1] == found[1][1]
    rows = [row for row in found[0][0].to_pylist() if row["of"] == "pay (20 bins)"]
    assert sum(row["value"] for row in rows) == pytest.approx(records, rel=0.02)


def test_an_evaluation_counts_the_table_in_the_released_bins(
    people: tuple[Path, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    url, source = f"sqlite:///{tmp_path}/ledger.db", str(people[0] / "people.parquet")
    fund(url, "d", epsilon="100", delta="1e-3")
    data = {"path": source, "minimum_records": 10_000, "extra_columns": "ignore"}
    output, work = {"path": str(tmp_path / "release")}, str(tmp_path / "work")
    cluster = {"mode": "in-process"}
    privacy = {"epsilon": 8, "delta": 1e-6}
    made = load(tree(data=data, output=output, ledger=url, work=work, cluster=cluster, privacy=privacy))
    run_release(made, fixed_key=KEY)
    request = Request(release=made.output.path, against=(source,), output=str(tmp_path / "page"))
    figures = json.loads(Path(run_evaluation(request).figures).read_text())["sections"]["counts"]["figures"]
    found = {row["of"]: row for row in figures["of"]}
    assert found["pay (20 bins)"]["number"] == 21
    assert found["rate (4 bins) × grade (2 bins)"]["number"] == 8
    assert figures["relative_error"]["pay (20 bins)"] < 0.01
    assert 0 < found["pay (20 bins)"]["mean error as drawn"] < 5 * make_plan(made).deviations[1]  # type: ignore[attr-defined]


def test_bins_are_a_function_of_the_noisy_levels_alone(
    people: tuple[Path, dict[str, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other tables with the same noisy levels have the same bins."""
    _, codes = people
    plan = planned().binning
    assert plan is not None
    true = [np.zeros((2, 1001), np.int64), np.bincount(codes["pay"], minlength=1001), np.zeros((40, 5), np.int64)]
    np.add.at(true[0], (codes["sex"], codes["pay"]), 1)
    first = choose(true, plan, noise=NOISE)
    kept = {place: noisy_levels(plan.counts(true)[place], plan, place, noise=NOISE) for place in range(3)}
    monkeypatch.setattr(
        "dpdist.families.histogram.binning.noisy_levels", lambda counts, plan, place, noise: kept[place]
    )
    again = choose([np.zeros_like(table) for table in true], plan, noise=NOISE)
    assert {key: bins.tolist() for key, bins in first.items()} == {key: bins.tolist() for key, bins in again.items()}


def test_a_manifest_without_its_bins_is_told() -> None:
    plan = planned(histograms=[{"columns": ["pay"], "adaptive": {"pay": 3}}])
    entry = {"histogram": 0, "column": "pay", "first_codes": [0, 5, 9]}
    truth(plan, {"chosen_bins": [entry]})
    others = [[0, 5], [1, 5, 9], [0, 5, 5], [0, 5, 1_000], [0, 5, 5_000], ["a", 1, 2], None, [0, 5, 1 << 80]]
    wrong: list[Any] = [[], [{}], 7, *([{**entry, "first_codes": codes}] for codes in others)]
    for stated in [{}, *({"chosen_bins": bins} for bins in wrong)]:
        with pytest.raises(VerificationFailed, match="does not state the bins"):
            truth(plan, stated)


def test_the_family_states_the_choice_among_its_claims() -> None:
    plan = planned()
    names = [claim.name for claim in family_of(plan.spec).claims(plan)]
    assert any(name.startswith("choice of bins") for name in names)
    assert len(names) == 2
    (scored,) = canaries(plan)
    assert scored.count == max(plan.cells) == 21
