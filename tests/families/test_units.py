"""Units of several records: their cost is enumerated, and the places of their records change no bit."""

import json
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import combinations_with_replacement, product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from cases import CASES, MIXING, PATIENT, PATIENTS, PRIVATE, SYNTHESIS, survey, visits
from releases import KEY, SCHEMA, fund, placed
from scipy.special import ndtr
from syntheses import choose_instead

from dpdist.data.arrow import PartitionedTable, TableInMemory
from dpdist.data.inputs import input_of
from dpdist.data.operators import gather_operator
from dpdist.errors import ColumnMismatch, ContractBroken, SpecError, VerificationFailed
from dpdist.evaluation.publishable import FILE
from dpdist.evaluation.request import Request
from dpdist.evaluation.run import run_evaluation
from dpdist.families.base.bounding import bounded
from dpdist.families.base.graph import run_pass
from dpdist.families.base.registry import family_of, make_plan
from dpdist.families.base.rehearsal import EXECUTOR
from dpdist.families.histogram.curves import coefficient_steps, sum_curves
from dpdist.families.histogram.entropy import plan_entropies, renyi
from dpdist.families.histogram.plan import HistogramPlan
from dpdist.families.mixing.claims import mixtures_claim
from dpdist.families.synthesis.plan import SynthesisPlan
from dpdist.ledger import Books
from dpdist.ledger.keys import KeyRef
from dpdist.lifecycle.conformity import check_input
from dpdist.lifecycle.run import run_release
from dpdist.privacy.mixtures import ClassMixtures
from dpdist.privacy.testing import Claim, audit
from dpdist.publish.statement import check_statement
from dpdist.publish.verify import read_manifest, verify
from dpdist.spec.contract import Contract
from dpdist.spec.reader import load
from dpdist.spec.release import ReleaseSpec
from dpdist.spec.validation import change

BITS: dict[str, Any] = {"attributes": [{"name": n, "kind": "categorical", "values": [0, 1]} for n in "ab"]}
RECORDS = list(product(range(2), repeat=2))
UNIT = {"by": "patient_id", "at_most": 3}


def spec(folder: Path, settings: dict[str, Any], **changes: Any) -> ReleaseSpec:
    return load({**placed(folder, records=60), "schema": BITS, "unit": UNIT, **settings, **changes})


def histogram(folder: Path, **privacy: Any) -> HistogramPlan:
    queries = [{"columns": list(columns)} for columns in ("a", "b", "ab")]
    plan = make_plan(spec(folder, {"kind": "histogram", "histograms": queries, "privacy": privacy}))
    assert isinstance(plan, HistogramPlan)
    return plan


def synthesis(folder: Path, **changes: Any) -> SynthesisPlan:
    settings = {"kind": "synthesis", "privacy": {"epsilon": 1, "delta": 1e-6}}
    plan = make_plan(spec(folder, {**settings, **changes}))
    assert isinstance(plan, SynthesisPlan)
    return plan


# --- what a unit costs ------------------------------------------------------------------------------------------------


def changes_of(unit: tuple[tuple[int, int], ...]) -> list[np.ndarray]:
    """What the records of a unit add to the tables of a, of b, and of both."""
    a, b = (np.bincount([record[i] for record in unit], minlength=2) for i in range(2))
    return [a, b, np.bincount([2 * x + y for x, y in unit], minlength=4)]


UNITS = [unit for size in range(1, 4) for unit in combinations_with_replacement(RECORDS, size)]


def test_laplace_noise_covers_every_unit_and_is_attained(tmp_path: Path) -> None:
    plan = histogram(tmp_path, epsilon=1)
    assert plan.measurement is not None
    losses = [
        sum(np.abs(c).sum() / scale for c, scale in zip(changes_of(unit), plan.measurement.scales, strict=True))
        for unit in UNITS
    ]
    assert 0.99 < max(losses) <= plan.epsilon == 1


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_gaussian_noise_covers_every_unit_and_is_attained(mechanism: str, tmp_path: Path) -> None:
    plan = histogram(tmp_path, epsilon=1, delta=1e-6, mechanism=mechanism)
    single = make_plan(change(plan.spec, {"unit": None}))
    assert isinstance(single, HistogramPlan)
    np.testing.assert_allclose(plan.deviations, 3 * np.array(single.deviations), rtol=0.01)
    if mechanism == "gaussian":
        scales = [scale for _, scale in plan.noise]
        mu = max(math.sqrt(sum((c**2).sum() / s**2 for c, s in zip(changes_of(u), scales, strict=True))) for u in UNITS)
        attained = ndtr(mu / 2 - 1 / mu) - math.e * ndtr(-mu / 2 - 1 / mu)
        assert 0.99 * 1e-6 < attained <= 1e-6


def test_a_synthesis_gives_each_record_a_third(tmp_path: Path) -> None:
    """Group privacy of a Gaussian account: what is mu-GDP for a record is 3 mu-GDP for three (`test_accounting.py`
    enumerates whole releases).
    """
    plan = synthesis(tmp_path)
    (gaussian, *_) = plan.event.events  # type: ignore[attr-defined]
    mu = math.hypot(plan.choices.mu, plan.accuracy_mu)
    assert 3 * mu <= 1 / gaussian.noise_multiplier <= 3 * mu * (1 + 1e-6)


@pytest.mark.parametrize("order", [1.0, 2.0, 0.5])
def test_entropies_cover_every_unit(order: float) -> None:
    """All tables of three cells and up to ten records, and all units of up to three of them; nearly attained by a unit
    whose records are alone in their bins.
    """
    small = plan_entropies([order], records=8, epsilon=1, delta=0, adjacency="add/remove", unit=3)
    most = small.scales[0]  # at epsilon 1 the scale is the sensitivity
    worst = 0.0
    for total in (8, 9, 10):
        for table in (t for t in product(range(total + 1), repeat=3) if sum(t) == total):
            for unit in (u for u in product(range(4), repeat=3) if 0 < sum(u) <= 3):
                left = np.subtract(table, unit)
                if left.min() >= 0:
                    worst = max(worst, abs(renyi(table, order=order) - renyi(left, order=order)))
    assert worst <= most
    large = plan_entropies([1.0], records=10_000, epsilon=1, delta=0, adjacency="add/remove", unit=3)
    assert renyi([9_997, 1, 1, 1], order=1.0) > 0.99 * large.scales[0]


def curves(folder: Path, **privacy: Any) -> HistogramPlan:
    schema = {"attributes": [{"name": f"t{i}", "kind": "number", "bounds": [-9, 9]} for i in range(6)]}
    settings = {"columns": [f"t{i}" for i in range(6)], "penalty": 0.05, "clip": 1.5}
    made = spec(folder, {"kind": "histogram", "curves": settings, "privacy": privacy}, schema=schema)
    plan = make_plan(made)
    assert isinstance(plan, HistogramPlan)
    return plan


def test_means_of_curves_cover_every_unit_and_are_attained(tmp_path: Path) -> None:
    """All units of up to three extreme curves; the one whose curves are all the worst needs all of the noise."""
    plan = curves(tmp_path, epsilon=1, delta=1e-6).curves
    assert plan is not None
    assert plan.count_sigma is not None
    _, _, rows = np.linalg.svd(plan.matrix * plan.matrix_unit / np.sqrt(plan.basis.weights), full_matrices=False)
    extreme = [sign * 1.5 * row / np.sqrt(plan.basis.weights) for row in rows[:3] for sign in (1, -1)]
    mu = 0.0
    for size in range(1, 4):
        for unit in combinations_with_replacement(extreme, size):
            sums = sum_curves(np.array(unit), plan.basis, clip=1.5)
            moved = np.array(coefficient_steps(sums, plan), np.float64) * plan.grid
            mu = max(mu, math.hypot(np.linalg.norm(moved) / plan.sigma, sums.count / plan.count_sigma))
    attained = ndtr(mu / 2 - 1 / mu) - math.e * ndtr(-mu / 2 - 1 / mu)
    assert 0.99 * 1e-6 < attained <= 1e-6


def test_two_stage_statistics_have_noise_for_units(tmp_path: Path) -> None:
    """One Gaussian account, as of a synthesis."""
    plans = [make_plan(PRIVATE.spec(tmp_path, unit=unit)) for unit in (None, UNIT)]
    one, three = plans[0].charge, plans[1].charge  # type: ignore[attr-defined]
    assert one.event == three.event
    for name in ("marginal", "correlation", "product", "cross"):
        assert getattr(three, name) == pytest.approx(3 * getattr(one, name))


def claim(folder: Path, family: str, monkeypatch: pytest.MonkeyPatch, *, epsilon: float, bounded_by: int = 3) -> Claim:
    """The first claim of a plan, attacked by units of three records; its noise may be for fewer."""
    if family == "histogram":
        plan: Any = histogram(folder, epsilon=epsilon)
    elif family == "curves":
        plan = curves(folder, epsilon=epsilon, delta=0.05)
    elif family == "two-stage":
        plan = make_plan(
            PRIVATE.spec(folder, unit=UNIT, privacy={"guarantee": "dp", "epsilon": epsilon, "delta": 0.09})
        )
    else:
        choose_instead(monkeypatch, {"one_way": 0.5, "one_way_again": 0.5}, rounds=0, balance=0)
        plan = synthesis(folder, privacy={"epsilon": epsilon, "delta": 0.09})
    noise = make_plan(change(plan.spec, {"unit.at_most": bounded_by}))
    if isinstance(noise, HistogramPlan) and noise.curves is not None:
        noise = replace(noise, curves=replace(noise.curves, unit=3))
    return family_of(plan.spec).claims(replace(noise, spec=plan.spec))[-1 if family == "two-stage" else 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "runs"), [("histogram", 1500), ("curves", 1500), ("synthesis", 200), ("two-stage", 200)]
)
def test_the_audit_comes_near_and_rejects_noise_for_records(
    family: str, runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = audit(claim(tmp_path, family, monkeypatch, epsilon=4), runs=runs, key=bytes(32))
    assert not finding.rejected
    assert finding.lower_bound > 0.1 * finding.epsilon
    assert audit(claim(tmp_path, family, monkeypatch, epsilon=1, bounded_by=1), runs=runs, key=bytes(32)).rejected


@pytest.mark.slow
def test_the_audit_of_mixtures_comes_near_and_rejects_noise_for_records(tmp_path: Path) -> None:
    """Units of three in small classes, beside what the same noise costs a single record."""
    mixtures = ClassMixtures(minimum=30, order=26, records=1, unit=3)
    sigma = 2 * 1.2 / mixtures.order
    claim = mixtures_claim(mixtures, sigma)
    finding = audit(claim, runs=800, key=bytes(32))
    assert not finding.rejected
    assert finding.lower_bound > 0.2 * finding.epsilon
    single = replace(mixtures, minimum=28, unit=1)
    assert audit(replace(claim, epsilon=single.epsilon(sigma, delta=claim.delta)), runs=800, key=bytes(32)).rejected
    classes = {value: {"minimum": 6_000, "records": 4} for value in ("low", "high")}
    made = make_plan(MIXING.spec(tmp_path, unit=UNIT, mixing__classes=classes, mixing__scaling="standardised"))
    kinds = {claim.name: audit(claim, runs=100, key=bytes(32)) for claim in family_of(made.spec).claims(made)}
    assert len(kinds) == 3  # mixtures, confirmations, moments
    assert not any(found.rejected for found in kinds.values())


# --- where the records of a unit are ----------------------------------------------------------------------------------


def table(rows: int = 900) -> pa.Table:
    return visits(rows)


def layouts(folder: Path, rows: pa.Table) -> Iterator[tuple[str, dict[str, Any]]]:
    """The table in files of several kinds, its rows in other orders."""
    shuffled = rows.take(pa.array(np.random.default_rng(0).permutation(rows.num_rows)))
    for name, pieces in {"one": [rows], "two": [rows.slice(0, 400), rows.slice(400)], "shuffled": [shuffled]}.items():
        (folder / name).mkdir()
        for number, piece in enumerate(pieces):
            pq.write_table(piece, folder / name / f"{number}.parquet", row_group_size=70)
        yield name, {"path": str(folder / name)}
    (folder / "csv").mkdir()
    pa.csv.write_csv(rows, folder / "csv" / "table.csv")
    yield "csv", {"path": str(folder / "csv" / "table.csv")}


def test_files_partitions_and_orders_change_no_record(tmp_path: Path) -> None:
    """The records that are used are the same; many units are in several partitions and files."""
    found = set()
    for name, data in layouts(tmp_path, table()):
        settings = {**PATIENTS.settings, "data": {**data, "minimum_records": 100}}
        made = spec(tmp_path, settings)
        for partitions in (1, 5):
            opened = input_of(made).open(made.table, partitions=partitions, beside="patient_id")
            held = bounded(EXECUTOR, opened.on(EXECUTOR), at_most=3, key=KeyRef.fixed(KEY))
            codes, report = run_pass(held, gather_operator())
            records = Counter(zip(*(column.tolist() for column in codes), strict=True))
            found.add((frozenset(records.items()), report.rows, report.kept, report.nameless, report.beyond))
            assert records.total() == report.kept, name
    assert len(found) == 1
    ((_, rows, kept, nameless, beyond),) = found
    ids = Counter(table()["patient_id"].to_pylist())
    without = ids.pop(None)
    assert (rows, nameless) == (900, without)
    assert (kept, beyond) == (sum(min(n, 3) for n in ids.values()), sum(max(n - 3, 0) for n in ids.values()))


def released(folder: Path, made: ReleaseSpec, **options: Any) -> bytes:
    if not (folder / "ledger.db").exists():
        fund(made.ledger, epsilon=100, delta="1e-3")
    run_release(made, fixed_key=KEY, **options)
    return b"".join(part.read_bytes() for part in sorted(Path(made.output.path).glob("*.parquet")))


def test_releases_of_frames_and_files_are_the_same(tmp_path: Path) -> None:
    """A synthesis, from two files, from a table in memory, and on threads with other partitions."""
    rows, found = table(), set()
    settings = {**SYNTHESIS.settings, "unit": UNIT}
    settings |= {
        "privacy": {"epsilon": 4, "delta": 1e-7},
        "synthesis": {"records": 300},
        "model": {"rounds": 1, "balance": 0},
    }
    for name, data in layouts(tmp_path, rows):
        cluster = {"mode": "threads", "partitions": 4} if name == "two" else {}
        made = spec(tmp_path, settings, name=name, data={**data, "minimum_records": 100}, cluster=cluster,
                    output={"path": str(tmp_path / f"release-{name}")})  # fmt: skip
        found.add(released(tmp_path, made))
        verify(made.output.path)
    made = spec(tmp_path, settings, name="memory", output={"path": str(tmp_path / "release-memory")},
                data={"path": "unused", "minimum_records": 100})  # fmt: skip
    found.add(released(tmp_path, made, input=TableInMemory(rows, "the table")))
    made = change(made, {"name": "parts", "output.path": str(tmp_path / "release-parts")})
    parts = PartitionedTable([rows.slice(0, 300), rows.slice(300)], lambda part: part, EXECUTOR, "the frame")
    found.add(released(tmp_path, made, input=parts, executor=EXECUTOR))
    assert len(found) == 1


def test_numbers_are_bounded_too(tmp_path: Path) -> None:
    """A private two-stage release, whose columns are of several widths, from one file and from two in another order."""
    rows = survey(600).append_column("patient_id", pa.array(np.arange(600) % 150))
    found = set()
    for name, pieces in {"one": [rows], "two": [rows.slice(250), rows.slice(0, 250)]}.items():
        (tmp_path / name).mkdir()
        for number, piece in enumerate(pieces):
            pq.write_table(piece, tmp_path / name / f"{number}.parquet")
        made = PRIVATE.spec(tmp_path, name=name, unit=UNIT, output__path=str(tmp_path / f"release-{name}"),
                            data={"path": str(tmp_path / name), "minimum_records": 100})  # fmt: skip
        found.add(released(tmp_path, made))
    assert len(found) == 1


def test_mixtures_of_units_are_the_same_wherever_their_records_are(tmp_path: Path) -> None:
    """A record's place in its class decides which mixtures hold it: bounded records are ordered by their values."""
    ids = np.random.default_rng(5).integers(0, 700, MIXING.rows)
    rows, found = MIXING.table(MIXING.rows).append_column("patient_id", pa.array(ids)), set()
    classes = {"low": {"minimum": 700, "records": 40}, "high": {"minimum": 400, "records": 30}}
    fund(f"sqlite:///{tmp_path}/ledger.db", epsilon=100, delta="1e-3")
    for name, pieces in {"one": [rows], "two": [rows.slice(3000), rows.slice(0, 3000)]}.items():
        (tmp_path / name).mkdir()
        for number, piece in enumerate(pieces):
            pq.write_table(piece, tmp_path / name / f"{number}.parquet", row_group_size=900)
        made = MIXING.spec(
            tmp_path, name=name, unit=UNIT, output__path=str(tmp_path / f"release-{name}"), mixing__classes=classes,
            data={"path": str(tmp_path / name), "minimum_records": 1_500},
            mixing__scaling="standardised", privacy__check_share=0.3,
            cluster={"mode": "threads", "partitions": 4} if name == "two" else {},
        )  # fmt: skip
        declared = Contract.model_validate(
            {"schema": made.table, "data": {"path": str(tmp_path / name)}, "unit": UNIT, "epsilon": 100,
             "delta": "1e-3", "minimum_records": 1_500, "minima": made.class_minima}
        )  # fmt: skip
        with pytest.raises(ContractBroken, match="has no contract" if name == "one" else "contract"):
            run_release(made)
        with closing(Books.open(made.ledger)) as ledger:
            ledger.amend("people", declared, reason="its unit")
            ledger.admit_input("people", fingerprint=check_input(declared).fingerprint, contract=declared.digest)
        found.add(released(tmp_path, made))
        manifest = verify(made.output.path)
        assert manifest.guarantees[0]["unit"] == "patient"
    assert len(found) == 1


def published(asked: Request) -> None:
    """Publish the figures of an evaluation, without the rest of it."""
    with mock.patch(
        "dpdist.evaluation.run.record_sections", lambda inputs, _, made: [made.publish(inputs.marginals())]
    ):
        run_evaluation(asked)


def test_published_figures_protect_units(tmp_path: Path) -> None:
    """They are of the records that are used, with noise for units; a repeated run finds the same figures."""
    rows = table(3_000)
    pq.write_table(rows, tmp_path / "table.parquet")
    made = SYNTHESIS.spec(tmp_path, unit=UNIT, data__minimum_records=1_000)
    released(tmp_path, made)
    asked = Request(release=made.output.path, against=(str(tmp_path / "table.parquet"),), output=tmp_path / "page",
                    train=50, test=50, attacks=False, cluster="threads", publish=5, ledger=made.ledger,
                    )  # fmt: skip
    published(asked)
    content = (tmp_path / "page" / FILE).read_bytes()
    figures = json.loads(content)
    assert "one patient with all its records" in figures["guarantee"]
    assert figures["noise"]["scale_of_records"] == pytest.approx(3 / (5 / 4))
    ids = Counter(rows["patient_id"].drop_null().to_pylist())
    assert abs(figures["figures"]["records"] - sum(min(n, 3) for n in ids.values())) < 60
    assert {path.name for path in (tmp_path / "page").iterdir() if "key" in path.name} == set()
    published(asked)
    assert (tmp_path / "page" / FILE).read_bytes() == content


def test_ids_are_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    rows = table()
    made = PATIENTS.spec(tmp_path, data__minimum_records=100)
    pq.write_table(rows, tmp_path / "table.parquet")
    released(tmp_path, made)
    manifest = read_manifest(made.output.path)
    assert manifest.guarantees[0]["unit"] == "patient"
    assert "one patient with all its records (at most 3 are used) is present" in manifest.guarantee
    ids = [str(n).encode() for n in set(rows["patient_id"].to_pylist()) - {None}]
    assert all(text.startswith(str(PATIENT)[:4].encode()) for text in ids)
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "table.parquet"]
    for content in [caplog.text.encode(), *(path.read_bytes() for path in files)]:
        assert not any(text in content for text in ids)
    confidential = [
        path.read_text() for path in (tmp_path / "work").rglob("*.json") if b"rows_kept" in path.read_bytes()
    ]
    assert any('"rows_beyond_bound"' in text and '"rows_without_id"' in text for text in confidential)


def test_a_statement_about_another_unit_is_found(tmp_path: Path) -> None:
    made = PATIENTS.spec(tmp_path, data__minimum_records=100)
    pq.write_table(table(), tmp_path / "table.parquet")
    released(tmp_path, made)
    manifest = read_manifest(made.output.path)
    check_statement(manifest)
    for unit in (None, {**manifest.spec["unit"], "at_most": 9}, {"by": "x"}):  # type: ignore[dict-item]
        other = {name: value for name, value in manifest.spec.items() if name != "unit"} | (
            {"unit": unit} if unit else {}
        )
        with pytest.raises(VerificationFailed, match="another unit"):
            check_statement(manifest.model_copy(update={"spec": other}))


# --- what is refused, and what the custodian is told ------------------------------------------------------------------


REFUSING = [case for case in CASES if case.name in ("plausible deniability", "federated mixing", "two-stage lid")]


@pytest.mark.parametrize("case", REFUSING, ids=lambda case: case.name)
def test_other_families_refuse_units(case: Any, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="protects single records only"):
        case.spec(tmp_path, unit=UNIT)


@pytest.mark.parametrize(
    "settings",
    [
        {"privacy": {"epsilon": 1, "adjacency": "replacement"}},
        {"privacy": {"epsilon": 1, "adjacency": "replacement", "mechanism": "pml", "alpha": 0.1}},
    ],
)
def test_other_statistics_refuse_units(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"protect single\s+records only"):
        spec(tmp_path, {"kind": "histogram", "histograms": "each column", **settings})


@pytest.mark.parametrize(
    ("unit", "message"),
    [
        ({"by": "a", "at_most": 3}, "the ids would be counted and released"),
        ({"by": "id", "at_most": 0}, r"unit\.at_most"),
        ({"by": "id", "at_most": 2_000_000}, r"unit\.at_most"),
        ({"by": "", "at_most": 3}, r"unit\.by"),
        ({"by": "id", "at_most": 3, "name": "record"}, r"unit\.name"),
        ({"at_most": 3}, r"unit\.by"),
    ],
)
def test_units_that_make_no_sense(unit: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=message):
        spec(tmp_path, {"kind": "histogram", "histograms": "each column", "privacy": {"epsilon": 1}}, unit=unit)


@pytest.mark.parametrize(
    ("column", "message"),
    [(None, "'patient_id' is missing"), (pa.array([True] * 900), "write ids as integers or texts")],
)
def test_a_table_without_ids_costs_nothing(column: pa.Array | None, message: str, tmp_path: Path) -> None:
    rows = table().drop_columns("patient_id")
    pq.write_table(rows if column is None else rows.append_column("patient_id", column), tmp_path / "table.parquet")
    made = PATIENTS.spec(tmp_path, data__minimum_records=100)
    with pytest.raises(ColumnMismatch, match=message):
        released(tmp_path, made)
    with closing(Books.open(made.ledger)) as ledger:
        assert ledger.show("people").attempts == ()


@pytest.mark.parametrize("ids", [[None] * 900, list(range(900)), [7] * 900])
def test_a_release_is_the_same_act_whatever_the_ids_are(ids: list[int | None], tmp_path: Path) -> None:
    """Without any id, with one for each record, and with one for all: published, and charged the same."""
    rows = table().drop_columns("patient_id").append_column("patient_id", pa.array(ids, pa.int64()))
    pq.write_table(rows, tmp_path / "table.parquet")
    released(tmp_path, PATIENTS.spec(tmp_path, data__minimum_records=100))


def test_ids_of_other_types_in_other_files(tmp_path: Path) -> None:
    """Integers in one file, texts, smaller integers or texts in a dictionary in others: one unit has one text."""
    rows, found = table(600), set()
    ids = rows["patient_id"].cast(pa.string())
    kinds = [pa.int64(), pa.string(), pa.int32(), pa.dictionary(pa.int32(), pa.large_string())]
    for name, chosen in {"texts": [pa.string()] * 4, "several": kinds}.items():
        (tmp_path / name).mkdir()
        for number, kind in enumerate(chosen):
            part = slice(150 * number, 150 * number + 150)
            own = ids[part].cast(kind) if pa.types.is_integer(kind) or pa.types.is_string(kind) else None
            column = ids[part].cast(pa.large_string()).dictionary_encode() if own is None else own
            piece = rows.drop_columns("patient_id")[part].append_column("patient_id", column)
            pq.write_table(piece, tmp_path / name / f"{number}.parquet")
        made = PATIENTS.spec(tmp_path, name=name, data={"path": str(tmp_path / name), "minimum_records": 100},
                             output__path=str(tmp_path / f"release-{name}"))  # fmt: skip
        found.add(released(tmp_path, made))
    assert len(found) == 1


def test_ids_of_no_use_in_a_later_file_cost_nothing(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    rows = table(300)
    pq.write_table(rows, tmp_path / "table" / "0.parquet")
    days = pa.array(np.arange(300), pa.timestamp("s"))
    rows = rows.drop_columns("patient_id").append_column("patient_id", days)
    pq.write_table(rows, tmp_path / "table" / "1.parquet")
    made = PATIENTS.spec(tmp_path, data={"path": str(tmp_path / "table"), "minimum_records": 100})
    with pytest.raises(ColumnMismatch, match=r"1\.parquet: the column 'patient_id' .*write ids as integers or texts"):
        released(tmp_path, made)
    with closing(Books.open(made.ledger)) as ledger:
        assert ledger.show("people").attempts == ()


@pytest.mark.parametrize(
    ("declared", "asked"),
    [
        ("record", UNIT),
        (UNIT, None),
        (UNIT, UNIT | {"at_most": 4}),
        (UNIT, UNIT | {"at_most": 2}),
        (UNIT, UNIT | {"name": "person"}),
        (UNIT | {"missing": "drop"}, UNIT),
    ],
)
def test_another_unit_than_the_contract_s_is_refused_whatever_the_ids_are(
    declared: Any, asked: dict[str, Any] | None, tmp_path: Path
) -> None:
    """The same words for all tables, before one is read, and nothing is charged."""
    path, refusals = tmp_path / "table.parquet", set()
    contract = Contract.model_validate(CONTRACT | {"unit": declared, "data": {"path": str(path)}})
    made = PATIENTS.spec(tmp_path, data__minimum_records=300, unit=asked)
    with closing(Books.open(made.ledger)) as ledger:
        ledger.create_from_contract("people", contract)
    for ids in ([None] * 900, list(range(900)), [7] * 900):
        column = pa.array(ids, pa.int64())
        pq.write_table(table().drop_columns("patient_id").append_column("patient_id", column), path)
        with pytest.raises(ContractBroken, match="the contract decides who is protected") as refused:
            run_release(made)
        refusals.add(str(refused.value))
    assert len(refusals) == 1
    with closing(Books.open(made.ledger)) as ledger:
        assert ledger.show("people").attempts == ()


def test_names_of_units() -> None:
    for column, name in {"patient_id": "patient", "PersonNr": "Person", "id": "unit", "household": "household"}.items():
        made = Contract.model_validate(CONTRACT | {"unit": {"by": column, "at_most": 2}})
        assert made.protected is not None
        assert made.protected.name == name


CONTRACT: dict[str, Any] = {
    "schema": SCHEMA,
    "data": {"path": "table.parquet"},
    "minimum_records": 300,
    "epsilon": 4,
    "delta": "1e-6",
    "unit": {"by": "patient_id", "at_most": 3, "missing": "drop"},
}


def test_numbers_of_kept_records_are_private() -> None:
    with pytest.raises(ValueError, match="is private"):
        Contract.model_validate(CONTRACT | {"number_of_records": 900})


def test_a_contract_decides_who_is_protected(tmp_path: Path) -> None:
    """A release under it says the same; the custodian alone is told what is not used."""
    rows = table()
    pq.write_table(rows, tmp_path / "table.parquet")
    files = {"path": str(tmp_path / "table.parquet")}
    declared = Contract.model_validate(CONTRACT | {"data": files})
    assert Contract.from_text(declared.text) == declared
    found = check_input(declared)
    assert found.problems == ()
    assert {"rows_without_id", "rows_beyond_bound"} < set(found.counts)
    strict = check_input(declared.model_copy(update={"unit": declared.unit.model_copy(update={"missing": "refuse"})}))
    assert [problem.split(":")[0] for problem in strict.problems] == ["column 'patient_id'"]
    many = check_input(declared.model_copy(update={"minimum_records": found.counts["rows_kept"] + 1}))
    assert many.problems == ("fewer records are kept than minimum_records declares",)
    made = PATIENTS.spec(tmp_path, data__minimum_records=300, unit__missing="drop")
    with closing(Books.open(made.ledger)) as ledger:
        ledger.create_from_contract("people", declared)
        ledger.admit_input("people", fingerprint=found.fingerprint, contract=declared.digest)
    for other in (None, {"by": "patient_id", "at_most": 4, "missing": "drop"}, {"by": "sex_id", "at_most": 3}):
        with pytest.raises(ContractBroken, match="the contract decides who is protected"):
            run_release(change(made, {"unit": other}))
    run_release(made, fixed_key=KEY)


def test_a_plan_says_what_the_bound_costs(tmp_path: Path) -> None:
    shown = make_plan(PATIENTS.spec(tmp_path)).explain()
    assert "add/remove adjacency of a patient with at most 3 records" in shown
    assert "at most 3 records of each patient (column 'patient_id') are used, and none without an id" in shown
    numbers = [float(text.split(" for ")[0]) for text in shown.split("by unit.at_most: ")[1].split("\n")[0].split(", ")]
    assert numbers == sorted(numbers)
    assert len(numbers) == 3
