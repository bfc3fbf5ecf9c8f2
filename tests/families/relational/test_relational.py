"""Two linked tables: how members are laid out, what a whole parent changes, what is drawn, what is read."""

from contextlib import closing
from copy import deepcopy
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import RELATIONAL
from releases import KEY
from syntheses import learn

import dpdist
from dpdist.data.count import pair_counts
from dpdist.data.keyed_ids import UnitHashes
from dpdist.errors import ContractBroken, DataNotFound, SpecError
from dpdist.families.base.plan import Plan
from dpdist.families.base.registry import make_plan
from dpdist.families.relational.draw import LinkedLaw, _members, _tilts, draw_linked, prepare
from dpdist.families.relational.exchange import (
    MeasuredMargins,
    Parents,
    Targets,
    Told,
    measure_margins,
    own_attributes,
)
from dpdist.families.relational.layout import Layout
from dpdist.ledger import Books
from dpdist.lifecycle.conformity import check_input
from dpdist.lifecycle.run import run_release
from dpdist.model.account import Measurements, NoisyTable
from dpdist.model.balance import CellCosts, PairIndex, TableRows
from dpdist.model.draw import draw_records
from dpdist.model.learn import Learned
from dpdist.privacy import accountant
from dpdist.privacy.arrays import Codes
from dpdist.privacy.events import Gaussian
from dpdist.privacy.noise import Noise
from dpdist.publish.verify import read_release, verify
from dpdist.spec.contract import Contract
from dpdist.spec.rules import broken_by

NOISE = Noise(bytes(32))


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """That of the small case: at most four members, children below 15."""
    found: Layout = RELATIONAL.spec(tmp_path).layout  # type: ignore[attr-defined]
    return found


def laid_out(layout: Layout, households: list[list[tuple[int, ...]]]) -> tuple[Codes, Codes]:
    """The rows of both tables of households of records, given by their codes."""
    units = [np.array([[k + 1, k + 1]], np.uint64).repeat(len(h), 0) for k, h in enumerate(households)]
    columns = np.array([record for h in households for record in h], np.int64).reshape(-1, 6).T
    codes: Codes = [c.astype(a.dtype) for c, a in zip(columns, layout.schema.attributes, strict=True)]
    by = codes[layout.order or 0]
    rows, places = UnitHashes.of(NOISE).arranged(np.concatenate(units), codes, by, at_most=layout.at_most)
    return layout.flattened(codes, rows, places)


def test_members_are_laid_out_with_what_they_depend_on(layout: Layout) -> None:
    # region, age (5 years), sex, score, employed, order
    household = [(2, 1, 1, 4, 1, 5), (2, 8, 0, 3, 0, 1), (2, 2, 0, 5, 1, 4), (2, 7, 1, 6, 0, 2), (2, 0, 0, 0, 1, 6)]
    first, others = laid_out(layout, [household, [(0, 1, 1, 1, 1, 1)]])
    assert layout.first.names == (
        "region",
        "(size)",
        "(of children)",
        "age",
        "sex",
        "score",
        "employed",
        "(composition)",
    )
    assert sorted(tuple(row) for row in zip(*map(np.ndarray.tolist, first), strict=True)) == [
        (0, 0, 1, 1, 1, 1, 1, 1),
        (2, 3, 2, 8, 0, 3, 0, 11),  # the fifth member is not used
    ]
    found = [tuple(row) for row in zip(*map(np.ndarray.tolist, others), strict=True)]
    assert [name for name in layout.others.names if name.startswith("(")] == ["(place)", "(left)", "(left of children)"]
    # region; place, left, children left; first age (by its buckets), sex, score, employed; age of the one between;
    # place and first sex; own
    assert found == [
        (2, 0, 2, 2, 2, 0, 3, 0, 5, 0, 7, 1, 6, 0),
        (2, 1, 1, 2, 2, 0, 3, 0, 1, 2, 2, 0, 5, 1),
        (2, 2, 0, 1, 2, 0, 3, 0, 0, 4, 1, 1, 4, 1),
    ]


def test_composition_is_one_column_that_sizes_and_kinds_agree_with(layout: Layout) -> None:
    """Of all rows exactly those of one composition keep the rules, where the first member is of either kind."""
    size, whole = len(layout.parent), len(layout.first.attributes) - 1
    grid = np.stack(np.meshgrid(*map(np.arange, (4, 5, len(layout.compositions))), indexing="ij")).reshape(3, -1)
    row = [np.zeros(grid.shape[1], np.int64) for _ in layout.first.attributes]
    row[size], row[size + 1], row[whole] = grid
    row[whole - 1] += 1  # a child is not employed
    broken = [
        broken_by(layout.first_rules, [*row[: size + 2], row[size + 2] + age, *row[size + 3 :]]) for age in (0, 9)
    ]
    kept = grid[:, ~(broken[0] & broken[1])].T
    expected = [(s, k) for s in range(4) for k in range(s + 2)]
    assert [tuple(found) for found in kept.tolist()] == [(s, k, code) for code, (s, k) in enumerate(expected)]
    assert (layout.compositions - [1, 0]).tolist() == [list(found) for found in expected]


def test_kinds_of_all_members_sum_to_the_size(tmp_path: Path) -> None:
    """Else a member is to come of which no kind is left, and the draw fails after the charge; noise alone decides."""
    members = {"kinds": {"children": "age < 15", "adults": "age >= 15"}}
    spec = RELATIONAL.project(tmp_path, privacy={"epsilon": 1e-6, "delta": 1e-7}, members=members)
    run_release(spec, fixed_key=KEY)
    assert read_release(spec.output.path).to_pandas()["household"].value_counts().max() > 1


def test_compositions_that_are_too_many_are_no_column_and_no_rule(tmp_path: Path) -> None:
    unit = {**RELATIONAL.settings["unit"], "at_most": 18}
    spec = replace(RELATIONAL, settings={**RELATIONAL.settings, "unit": unit}).spec(tmp_path)
    layout: Layout = spec.layout  # type: ignore[attr-defined]
    assert "(composition)" not in layout.first.names
    cards = layout.first.cardinalities
    masks = [(len(mask), cards[i]) for rule in layout.first_rules for box in rule.boxes for i, mask in box.items()]
    assert all(length == size for length, size in masks)


def test_a_whole_parent_costs_what_is_charged_and_attains_it(layout: Layout, tmp_path: Path) -> None:
    """Every household of a tiny universe, one to five members: what it adds to every table of one or two columns."""
    kinds = [(0, 1, 0, 0, 0, 0), (0, 9, 1, 3, 1, 0)]
    largest = [0.0, 0.0]
    for size in range(1, layout.at_most + 2):
        for household in product(kinds, repeat=size):
            for k, (codes, schema) in enumerate(zip(laid_out(layout, [list(household)]), both(layout), strict=True)):
                counts = pair_counts(codes, schema.cardinalities)
                singles = [counts.single(i) for i in range(len(codes))]
                pairs = [counts.pair(i, j) for i, j in combinations(range(len(codes)), 2)]
                moved = max(float(np.sqrt((table.astype(float) ** 2).sum())) for table in (*singles, *pairs))
                largest[k] = max(largest[k], moved)
    assert largest == [1.0, layout.at_most - 1.0]
    plan = make_plan(RELATIONAL.spec(tmp_path))
    first, others = (np.hypot(c.mu, m) for c, m in zip((plan.first, plan.others), plan.margins, strict=True))  # type: ignore[attr-defined]
    mu = np.hypot(first, (layout.at_most - 1) * others)
    assert accountant.epsilon(Gaussian(1 / mu), delta=plan.delta) <= plan.epsilon * (1 + 1e-9)
    assert plan.epsilon == pytest.approx(4, rel=1e-3)


def both(layout: Layout) -> tuple:  # type: ignore[type-arg]
    return layout.first, layout.others


def law_of(layout: Layout, households: list[list[tuple[int, ...]]], plan: Plan) -> LinkedLaw:
    """Both models of some households, and what the tables of a release of it should be."""
    models: list[Learned] = []
    margins = []
    parts = plan.first, plan.others  # type: ignore[attr-defined]
    tables = zip(laid_out(layout, households), both(layout), parts, (layout.first_rules, ()), strict=True)
    for codes, schema, choices, rules in tables:
        counts = pair_counts(codes, schema.cardinalities)
        own, mu = own_attributes(layout)[len(models)], plan.margins[len(models)]  # type: ignore[attr-defined]
        margins.append(measure_margins(counts, own, mu=mu, noise=NOISE, name=schema.names[1]))
        models.append(learn(counts, choices=choices, noise=NOISE, drawing=NOISE, rules=rules, prefix=schema.names[1]))
    measured = MeasuredMargins.from_bytes(MeasuredMargins((margins[0], margins[1])).to_bytes())
    fitted, parents = (models[0].fitted, models[1].fitted), float(len(households))
    records = parents, sum(map(len, households)) - parents
    return LinkedLaw(layout, fitted, Targets.of(layout, fitted, measured, records, 1.0, models[1].measurements))


def parents_of(law: LinkedLaw, part: int, rows: int) -> list[np.ndarray]:  # type: ignore[type-arg]
    rules = law.layout.first_rules
    return [c.astype(np.int64) for c in draw_records(law.models[0], NOISE, part, rows, rounds=0, rules=rules)]


def test_what_two_columns_say_alike_counts_once(layout: Layout, tmp_path: Path) -> None:
    """The first member's score is that of the region, which is not measured; that of the next one is too, for most."""
    rng = np.random.default_rng(0)
    households = []
    for _ in range(3_000):
        region = int(rng.integers(4))
        score = region if rng.random() < 0.6 else int(rng.integers(4))
        households.append([(region, 9, 0, region, 0, 0), (region, 9, 1, score, 0, 1)])
    plan = make_plan(RELATIONAL.spec(tmp_path, privacy={"epsilon": 20, "delta": 1e-7}))
    given = combinations(range(len(layout.given)), 2)
    others = replace(plan.others, priorities=tuple((*pair, 2.0**-10) for pair in given))  # type: ignore[attr-defined]
    law = law_of(layout, households, replace(plan, others=others))  # type: ignore[call-arg]
    rows, missed = parents_of(law, 1, 6_000), []
    tilts = _tilts(law, parents_of(law, 0, 2_000), NOISE, "tilts")
    for factors in ([np.zeros(tilt.shape) for tilt in tilts], tilts):
        drawn, _ = _members(law, factors, rows, NOISE, "drawn")
        missed.append((drawn[2][:, 1] == rows[0])[rows[1] > 0].mean() - 0.7)
    assert missed[0] > 0.2
    assert abs(missed[1]) < 0.1


def test_composition_and_members_agree_in_every_parent(layout: Layout, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    households = []
    for _ in range(400):
        grown = [(int(rng.integers(4)), int(rng.integers(3, 20)), int(rng.integers(2)), 3, 0, 0)]
        young = [(grown[0][0], int(rng.integers(0, 3)), 1, 1, 1, 1 + i) for i in range(rng.integers(0, 4))]
        households.append(grown + young)
    law = law_of(layout, households, make_plan(RELATIONAL.spec(tmp_path, privacy={"epsilon": 20, "delta": 1e-7})))
    targets, first = law.targets, parents_of(law, 0, 4_000)
    older = targets.places[0] * np.where(np.arange(targets.places[0].shape[1]) == 2, 2, 1)
    older /= older.sum(1, keepdims=True)
    wanted = replace(targets, places=(older, *targets.places[1:]))
    other = replace(law, targets=wanted)
    drawn, _ = _members(other, _tilts(other, first, NOISE, "tilts"), first, NOISE, "tilted")
    ages = drawn[0][first[1] > 0, 1]
    assert (ages == 2).mean() == pytest.approx(older[0, 2], abs=0.06)
    assert targets.places[0][0, 2] < older[0, 2] - 0.1
    first, members, columns = draw_linked(law, prepare(law, NOISE, 1, 2_000), NOISE, 0, 2_000)
    assert len(first[0]) == 2_000
    parent, place = members
    sizes = first[1] + 1
    assert np.array_equal(np.bincount(parent), sizes)
    assert np.array_equal(np.sort(place), np.sort(np.concatenate([np.arange(n) for n in sizes])))
    age, employed = columns[1], columns[4]
    assert np.array_equal(np.bincount(parent, weights=age < 3).astype(int), first[2])
    assert not ((age < 3) & (employed == 0)).any()
    assert (np.bincount(parent, weights=age >= 3) >= 1).mean() > 0.9  # as in the table, though no rule says so
    real = np.array([record for household in households for record in household]).T
    for i, schema in enumerate(layout.schema.attributes[:5]):  # margins of all members, as in the table
        shares = [np.bincount(c, minlength=schema.cardinality) / len(c) for c in (columns[i], real[i])]
        assert np.abs(shares[0] - shares[1]).sum() / 2 < 0.03


def test_what_a_table_tells_has_the_margins_of_the_rows() -> None:
    """Of the other order of columns and merged values; what is within noise is left as it is."""
    counts = np.array([[10, 40, 50], [60, 20, 20]])
    tables = [NoisyTable("round/0/tables", (0, 1), True, sigma, (2, 3), counts.ravel() * of) for sigma, of in PARTS]
    measured = Measurements(tuple(tables), (1, 0), (np.array([0, 1]), np.array([0, 1, 2, 2])))
    mean, deviation = measured.pair_means()[0, 1]
    assert deviation == pytest.approx(1 / np.sqrt(1 / 4 + 1))
    assert np.allclose(mean, counts * (1 / 4 + 2) / (1 / 4 + 1))
    told = Told((0, 1), (1, 0), measured.maps, counts / 200, 0.0)
    rng = np.random.default_rng(0)
    rows = [rng.integers(4, size=4_000).astype(np.int64), rng.integers(2, size=4_000).astype(np.int64)]
    drawn = told.drawn(rows)
    assert drawn[1, 2] == ((rows[1] == 1) & (rows[0] >= 2)).sum()
    noisy, wanted = told.wanted(drawn)
    for axis in (0, 1):
        assert np.allclose(wanted.sum(axis), drawn.sum(axis))
        assert np.allclose(noisy.sum(axis), drawn.sum(axis))
    assert np.abs(wanted - drawn).sum() > 0.9 * np.abs(noisy - drawn).sum() > 500
    assert np.array_equal(replace(told, deviation=1.0).wanted(drawn)[1], drawn)


PARTS = ((2.0, 1), (1.0, 2))


def test_parents_cost_what_their_rows_cost() -> None:
    """Cells of whole parents, some without further members, against sums row by row."""
    rng = np.random.default_rng(0)
    ends = np.concatenate([[0], np.cumsum(rng.integers(0, 4, 50))])
    cards = (3, 4, 2)
    first, others = (
        TableRows(rng.integers(0, 2, (3, n)).astype(np.int32), PairIndex.of(cards)) for n in (50, int(ends[-1]))
    )
    excess, weight = rng.integers(-9_000, 9_000, (2, 2 * first.index.cells))
    parents, costs = Parents(first, others, ends), CellCosts(excess, weight, 1)
    of_cells = costs.at(np.arange(len(excess), dtype=np.int32))
    items = rng.permutation(50)[:20]
    expected = []
    for item in items:
        cells = first.index.of_rows(first.values[:, [item]]).ravel()
        more = others.index.of_rows(others.values[:, ends[item] : ends[item + 1]]).ravel() + first.index.cells
        expected.append(of_cells[cells].sum() + of_cells[more].sum())
    np.testing.assert_array_equal(parents.costs(items, costs), expected)
    assert int((parents.counts(items) * of_cells).sum()) == sum(expected)
    assert parents.costs(items[:0], costs).size == 0


def split(folder: Path, table: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Persons without their region, and households with it, in another order."""
    owner = table.to_pandas().dropna(subset=["household"]).groupby("household")[["region"]].first().reset_index()
    owner["household"] = owner["household"].astype("int64")
    return table.drop(["region"]), pa.Table.from_pandas(owner[::-1], preserve_index=False)


def released(folder: Path, members: pa.Table, parents: pa.Table, name: str) -> pa.Table:
    RELATIONAL.write(folder, members)
    pq.write_table(parents, folder / "parents.parquet", row_group_size=500)
    parent = {"path": str(folder / "parents.parquet"), "attributes": ["region"]}
    changes = {"parent": {"records": 480}, "data__parent": parent, "cluster__partitions": 3}
    spec = RELATIONAL.spec(
        folder, output__path=str(folder / name), name=name, ledger=f"sqlite:///{folder}/{name}.db", **changes
    )
    with closing(Books.open(spec.ledger)) as ledger:
        ledger.create_dataset("people", epsilon=100, delta="1e-3")
        with pytest.raises(ContractBroken, match="one of records"):
            run_release(spec, fixed_key=KEY)
        data = {"path": spec.data.path, "parent": parent, "extra_columns": "ignore"}
        tree = {"schema": spec.table, "data": data, "unit": spec.unit, "minimum_records": 5_000}
        contract = Contract.model_validate({**tree, "epsilon": 100, "delta": "1e-3"})
        found = check_input(contract)
        told = "household" in "".join(found.problems)
        assert told == (name != "two" or bool(members["household"].null_count))
        ledger.amend("people", contract, reason="declared")
        ledger.admit_input("people", fingerprint=found.fingerprint, contract=contract.digest)
    run_release(spec, fixed_key=KEY)
    verify(folder / name)
    return read_release(folder / name)


def test_two_files_are_read_as_the_joined_one(tmp_path: Path) -> None:
    spec = RELATIONAL.project(tmp_path)
    run_release(spec, fixed_key=KEY)
    whole = read_release(tmp_path / "release")
    members, parents = split(tmp_path, RELATIONAL.table(RELATIONAL.rows))
    opened = dpdist.open_release(tmp_path / "release")  # the numbers of its parents have no codes
    for ask in (opened.tabulate, lambda name: opened.infer(f"mean {name}")):
        with pytest.raises(DataNotFound, match="publishes no model"):
            ask("age")
    # households without persons, one id twice with equal rows: not used, and no error
    more = pa.table({"household": [5, 6], "region": ["north", "west"]}, schema=parents.schema)
    assert released(tmp_path, members, pa.concat_tables([parents, more, parents[:40]]), "more").equals(whole)
    fewer = released(tmp_path, members, parents[100:], "fewer")  # persons without household
    assert not fewer.equals(whole)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("nothing", {}),
        ("orphans", {"rows_without_parent": "has no row in data.parent"}),
        ("childless", {"parents_without_rows": "no record belongs to"}),
        ("repeated", {"repeated_parents": "several rows in data.parent for one household"}),
        ("nameless", {"rows_without_id": "without an id"}),
        (
            "elsewhere",
            {
                "rows_without_parent": "has no row",
                "parents_without_rows": "no record belongs",
                "": "fewer records are kept",
            },
        ),
    ],
)
def test_each_fault_of_the_link_is_told_apart_and_can_be_declared(
    change: str, found: dict[str, str], tmp_path: Path
) -> None:
    table = RELATIONAL.table(900)
    members, parents = split(tmp_path, table.filter(table["household"].is_valid()))
    ids = parents["household"].to_numpy()
    more = {"childless": [5, 6, 7], "repeated": ids[:40].tolist()}.get(change, [])
    extra = pa.table({"household": more, "region": ["north"] * len(more)}, schema=parents.schema)
    parents = pa.concat_tables([parents, extra])
    if change == "orphans":
        parents = parents[30:]
    if change == "nameless":
        members = pa.concat_tables([members, table.drop(["region"]).filter(table["household"].is_null())])
    if change == "elsewhere":  # ids of another table
        parents = parents.set_column(0, "household", pa.array(ids + 10**6))
    pq.write_table(members, tmp_path / "members.parquet")
    pq.write_table(parents, tmp_path / "parents.parquet")
    spec = RELATIONAL.spec(tmp_path)
    data = {
        "path": str(tmp_path / "members.parquet"),
        "parent": {"path": str(tmp_path / "parents.parquet"), "attributes": ["region"]},
    }
    for missing in ("refuse", "drop"):
        tree = {"schema": spec.table, "data": data, "unit": {"by": "household", "at_most": 4, "missing": missing}}
        tree |= {"minimum_records": 500, "epsilon": 100, "delta": "1e-3"}
        met = check_input(Contract.model_validate(tree))
        told = [text for count, text in found.items() if missing == "refuse" or not count]
        assert len(met.problems) == len(told)
        assert all(any(text in problem for problem in met.problems) for text in told)
        assert not any(digit in problem for problem in met.problems for digit in "0123456789")  # no count, no id
        counts = {"rows_without_parent", "parents_without_rows", "repeated_parents", "rows_without_id"}
        assert counts & met.counts.keys() == found.keys() - {""}
    expected = {"childless": 3, "repeated": 40}
    if change in expected:
        assert [met.counts[name] for name in found] == [expected[change]]


def test_only_the_order_of_members_counts(layout: Layout) -> None:
    """Gaps in the order change nothing; members at one place have an order that does not depend on the rows'."""
    rng = np.random.default_rng(0)
    plain = [[(k % 4, int(rng.integers(20)), k % 2, 3, 0, i) for i in range(1 + k % 6)] for k in range(30)]
    # order of 0 to 6: members at 0, 1, 2, ... or with places left out
    few = [household[:3] for household in plain]
    gaps = [[(*member[:5], (0, 3, 6)[member[5]]) for member in household] for household in few]
    for one, other in zip(laid_out(layout, few), laid_out(layout, gaps), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    ties = [[(*member[:5], member[5] // 3) for member in household] for household in plain]
    mixed = [[household[i] for i in rng.permutation(len(household))] for household in ties]
    for one, other in zip(laid_out(layout, ties), laid_out(layout, mixed), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"unit": None}, "unit"),
        ({"unit__at_most": 1}, "unit"),
        ({"parent__attributes": ["nothing"]}, "nothing"),
        ({"parent__attributes": []}, "parent.attributes"),
        ({"members__order": "sex"}, "sex"),
        ({"members__kinds": {"a": "age < 15", "b": "age < 20"}}, "members.kinds"),
        ({"members__kinds": {"a": "age < 15", "b": "sex = 1"}}, "members.kinds"),
        ({"members__kinds": {"a": "region = 'north'"}}, "members.kinds"),
        ({"members__previous": ["region"]}, "region"),
        ({"data__parent": {"path": "x.parquet", "attributes": ["regio"]}, "parent__attributes": []}, "regio"),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused_by_setting(
    changes: dict[str, object], named: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match=named):
        replace(RELATIONAL, settings=deepcopy(RELATIONAL.settings)).spec(tmp_path, **changes)


def test_what_is_the_parents_is_the_same_for_its_members(tmp_path: Path) -> None:
    """A number in a bin is drawn once for a parent; a rule across both tables holds for every member."""
    changes = {"parent": {"attributes": ["region", "age"], "records": 400}, "members": {"order": "order"}}
    spec = RELATIONAL.project(tmp_path, **changes)
    run_release(spec, fixed_key=KEY)
    made = read_release(tmp_path / "release").to_pandas()
    assert made.household.nunique() == 400 < len(made)
    assert made.age.nunique() > 30
    assert (made.groupby("household")[["region", "age"]].nunique() == 1).all(axis=None)
    assert (made.groupby("household")["order"].max() == made.groupby("household").size()).all()
    assert not ((made.age < 15) & (made.employed == "yes")).any()
