"""What holds of every family, wherever it runs: one list of properties, and a family of ten lines that has them all.

A new family is a `Case` in `tests/cases.py`; nothing else is written here for it.
"""

import io
import json
import logging
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import CASES, CLIENTS, DISCOVERING, DISCOVERY, FEDERATED, HISTOGRAM, LID, MIXING, PARTIES, SYNTHESIS, Case
from clusters import parts
from executors import Executors, Measured, Twice, runs_use
from jsonschema import Draft202012Validator
from reading import readable
from releases import KEY, SCHEMA

from dpdist.api.display import PlannedRelease
from dpdist.cluster.executor import Executor
from dpdist.data.operators import pair_counts_operator
from dpdist.data.records import BATCH_ROWS
from dpdist.errors import CheckFailed, DataError, DataNotFound, DpdistError, OutOfDomain, PrivacyError, RoundFailed
from dpdist.families.base.attempt import Attempt, ReleasedRecords, write_records
from dpdist.families.base.family import Family, Stage
from dpdist.families.base.passes import Passes
from dpdist.families.base.plan import EventPlan
from dpdist.families.base.registry import FAMILIES, make_plan, register
from dpdist.ledger import Books, Charge
from dpdist.ledger.keys import load_noise
from dpdist.ledger.records import canonical_event
from dpdist.lifecycle.run import Run, run_release
from dpdist.privacy.events import DiscreteLaplace
from dpdist.privacy.formatting import LABEL
from dpdist.privacy.noise import Noise
from dpdist.publish import manifest
from dpdist.publish.verify import read_manifest, verify
from dpdist.spec.reader import json_schema
from dpdist.spec.release import PrivacyLimit, ReleaseSpec

# --- a family of ten lines --------------------------------------------------------------------------------------------


class TallySpec(ReleaseSpec):
    kind: Literal["tally"]
    privacy: PrivacyLimit = PrivacyLimit()


def tally(attempt: Attempt[TallySpec, EventPlan]) -> ReleasedRecords:
    """Records of the first column alone, each value as often as a noisy count says."""
    sizes = [attribute.cardinality for attribute in attempt.spec.table.attributes]
    counts = Passes(attempt).run(pair_counts_operator(sizes), stage="counting").single(0)
    noisy = counts + attempt.noise.discrete_laplace("tally", counts.size, scale=2)
    codes = np.repeat(np.arange(counts.size, dtype=np.uint8), np.maximum(noisy, 0))
    return ReleasedRecords([[part] for part in np.split(codes, range(1_000, codes.size, 1_000))])


TALLY = Family(
    kind="tally",
    spec=TallySpec,
    plan=lambda spec: EventPlan(spec=spec, event=DiscreteLaplace(scale=2)),
    stages=lambda plan: (Stage("tally", tally), Stage("write", write_records)),
)
TALLY_CASE = replace(
    HISTOGRAM,
    name="ten lines",
    settings={"kind": "tally", "schema": {"attributes": SCHEMA["attributes"][:1]}, "data.extra_columns": "ignore"},
)


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    register(TALLY)
    yield
    del FAMILIES["tally"]


# --- families, executors and what they release ------------------------------------------------------------------------

EVERY = [*CASES, TALLY_CASE]
ANYWHERE = [pytest.param(case, mode, id=f"{case.name}-{mode}") for case in EVERY for mode in case.modes]
PLACES = [place for place in ANYWHERE if place.values[1] == "address" or place.values[0] in (HISTOGRAM, FEDERATED)]
"""Every family where its tasks and their results are sent over a wire, and two of them on every executor: an executor
runs any task by the same lines."""
LOCAL = [case for case in EVERY if "in-process" in case.modes]
families = pytest.mark.parametrize("case", EVERY, ids=lambda case: case.name)
local = pytest.mark.parametrize("case", LOCAL, ids=lambda case: case.name)
places = pytest.mark.parametrize(("case", "mode"), PLACES)
REFUSING = [place for place in ANYWHERE if isinstance(place.values[0], Case) and place.values[0].bad is not None]
pairs = pytest.mark.parametrize(
    ("case", "mode"),
    [place for place in REFUSING if place.values[0] in (HISTOGRAM, FEDERATED) or place.values[1] == "in-process"],
)
"""Every family, and every executor, where neither changes what the other does: a family says what it refuses wherever
it runs, and an executor brings the error of any task home by the same lines (`dpdist.cluster.opening.translated`)."""


LEFT_OUT = ("attempt", "created", "parts", "files", "spec_sha256")
"""Fields of a manifest that say when and from where, and the names of parts, which hold the attempt."""


class _Interrupted(Exception):
    """Stands for the end of a process."""


@dataclass(frozen=True)
class Calm:
    """A release where nothing goes wrong, in one process and one partition: what it holds, its stages in order, all
    that was logged, and the streams drawn before its charge was in the state drawing."""

    spec: ReleaseSpec
    content: tuple[list[bytes], dict[str, Any]]
    stages: tuple[str, ...]
    log: str
    early: tuple[str, ...] | None


@pytest.fixture(scope="module")
def calm(executors: Executors, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Calm]:
    """The calm release of a case, made once."""

    @cache
    def made(name: str) -> Calm:
        case = next(case for case in EVERY if case.name == name)
        return released(case, tmp_path_factory.mktemp("calm"), executors)

    return lambda case: made(case.name)


def released(case: Case, folder: Path, executors: Executors) -> Calm:
    """The calm release of a case."""
    spec, met = case.project(folder, cluster__partitions=1), dict[str, None]()
    with logged() as log, drawn_early(spec) as early:
        run(spec, executors.of(case.modes[0], spec), progress=lambda stage, *_: met.setdefault(stage))
    return Calm(spec, content(spec), tuple(met), log.getvalue(), early())


@contextmanager
def logged() -> Iterator[io.StringIO]:
    """All that dpdist logs meanwhile."""
    logger, handler = logging.getLogger("dpdist"), logging.StreamHandler(text := io.StringIO())
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield text
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def run(spec: ReleaseSpec, executor: Executor, **options: Any) -> None:
    """A release with a fixed key."""
    with runs_use(executor):
        run_release(spec, fixed_key=KEY, **options)


def content(spec: ReleaseSpec) -> tuple[list[bytes], dict[str, Any]]:
    """What a release holds: its parts, and its manifest but for what differs from run to run."""
    folder = Path(spec.output.path)
    tree = json.loads((folder / "_manifest.json").read_text())
    return parts(folder), {name: value for name, value in tree.items() if name not in LEFT_OUT}


def differing(spec: ReleaseSpec, calm: Calm) -> list[str]:
    """What of a release is other than in the calm one."""
    (found, manifest), (expected, its) = content(spec), calm.content
    fields = [name for name in manifest.keys() | its.keys() if manifest.get(name) != its.get(name)]
    return fields + ["parts"] * (found != expected)


def attempts(spec: ReleaseSpec) -> list[Charge]:
    """The attempts of the ledger, which is whole."""
    with closing(Books.open(spec.ledger, create=False)) as ledger:
        ledger.verify(spec.dataset)
        return list(ledger.show(spec.dataset).attempts)


def raw_states(spec: ReleaseSpec) -> list[str]:
    """The states as the file of the ledger has them, without a check of its journal."""
    with closing(sqlite3.connect(spec.ledger.removeprefix("sqlite:///"))) as file:
        return [state for (state,) in file.execute("SELECT state FROM dpdist_charge")]


def states(spec: ReleaseSpec) -> list[str]:
    return [attempt.state for attempt in attempts(spec)]


# --- the plan ---------------------------------------------------------------------------------------------------------


@families
def test_a_plan_reads_no_record(case: Case, tmp_path: Path) -> None:
    """There is neither a table nor a ledger, and the plan is that of the spec with both."""
    nowhere = make_plan(case.spec(tmp_path))
    here = make_plan(case.project(tmp_path))
    assert nowhere.to_json() == here.to_json()
    assert nowhere.event == here.event
    assert nowhere.explain() == here.explain()
    json.dumps(here.to_json(), allow_nan=False)
    assert here.needs().task_bytes > 0


@families
def test_the_facts_of_a_plan_are_the_same_everywhere(case: Case, tmp_path: Path) -> None:
    plan = make_plan(case.spec(tmp_path))
    facts, first = plan.facts(), PlannedRelease(plan).facts(details=False)
    titles = [fact.title for fact in first]
    assert titles[:2] == ["Release", "Guarantee"]
    assert titles[-2:] == ["Budget", "Contract"]
    assert {"Memory", "Time"} < set(titles)
    assert not {"Charge", "Meaning"} & set(titles)
    assert all(fact in first for fact in facts if not fact.detail)
    assert [line[LABEL:] for line in plan.explain().splitlines()] == [fact.sentence for fact in facts]
    assert plan.to_json()["facts"] == [fact.to_json() for fact in facts]
    page = PlannedRelease(plan)._repr_html_()
    assert all(escape(fact.sentence) in page for fact in first)


@families
def test_a_spec_says_all_that_its_schema_admits(case: Case, tmp_path: Path) -> None:
    spec = case.spec(tmp_path)
    assert type(spec) is FAMILIES[spec.kind].spec_class
    _validator().validate(spec.model_dump(mode="json", by_alias=True))


@cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(json_schema())


# --- the charge -------------------------------------------------------------------------------------------------------


BEFORE_NOISE = ("split/", "federation/agreement")
"""Streams that hide no record: the coins of random splits, and the keys by which clients agree on masks."""


@contextmanager
def drawn_early(spec: ReleaseSpec) -> Iterator[Callable[[], tuple[str, ...] | None]]:
    """What is drawn meanwhile until the state is drawing, which never goes back; None where it never was."""
    early: list[str] = []
    words, begun = Noise._words, False

    def spied(self: Noise, address: bytes, count: int, start: int) -> Any:
        nonlocal begun
        begun = begun or raw_states(spec) == ["drawing"]
        if not begun:
            early.append(repr(address))
        return words(self, address, count, start)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Noise, "_words", spied)
        yield lambda: tuple(early) if begun else None


@families
def test_the_charge_is_in_the_ledger_before_noise_is_drawn(case: Case, calm: Callable[[Case], Calm]) -> None:
    made = calm(case)
    spec, early = made.spec, made.early
    (charged,) = attempts(spec)
    if charged.event is not None:  # else nothing is charged
        assert early is not None, "no charge"
        assert not [address for address in early if not any(name in address for name in BEFORE_NOISE)]
    assert charged.state == "committed"
    assert canonical_event(charged.event) == canonical_event(make_plan(spec).event)


@pytest.mark.parametrize("case", [HISTOGRAM, SYNTHESIS, FEDERATED], ids=lambda case: case.name)
def test_a_key_of_its_own_gives_another_release(
    case: Case, executors: Executors, tmp_path: Path, calm: Callable[[Case], Calm]
) -> None:
    spec = case.project(tmp_path)
    with runs_use(executors.of(case.modes[0], spec)):
        run_release(spec)
    assert content(spec)[0] != calm(case).content[0]


@families
def test_a_ledger_that_does_not_admit_the_charge_lets_no_record_be_read(
    case: Case, executors: Executors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = case.project(tmp_path, dataset="poor")
    with closing(Books.open(spec.ledger)) as ledger:
        ledger.create_dataset("poor", epsilon="1e-6", delta="1e-3", guarantees=("dp", "pd-per-record"))

    def read(*_: object, **__: object) -> None:
        raise AssertionError("a record was read")

    monkeypatch.setattr("dpdist.data.table.Table.batches", read)
    monkeypatch.setattr("dpdist.data.table.count_records", read)
    with pytest.raises(PrivacyError, match="poor"):
        run(spec, executors.of(case.modes[0], spec))
    assert states(spec) == []


# --- the same bits ----------------------------------------------------------------------------------------------------


@places
def test_chunks_workers_and_resumed_runs_change_no_bit(
    case: Case, mode: str, executors: Executors, tmp_path: Path, calm: Callable[[Case], Calm]
) -> None:
    """Five partitions until a stage in the middle begins, then two."""
    stages = calm(case).stages
    spec = case.project(tmp_path, cluster__partitions=5)
    interrupted(spec, executors.of(mode, spec), stages[len(stages) // 2])
    run(case.spec(tmp_path, cluster__partitions=2), executors.of(mode, spec), attempt="resume")
    assert not differing(spec, calm(case))
    assert states(spec) == ["committed"]


@pytest.mark.slow
@families
def test_a_run_that_ends_in_every_stage_changes_no_bit(
    case: Case, executors: Executors, tmp_path: Path, calm: Callable[[Case], Calm]
) -> None:
    """It ends when a stage begins, and is resumed with other partitions until the next one; there is one charge."""
    spec = case.project(tmp_path, cluster__partitions=3)
    for number, stage in enumerate(calm(case).stages):
        parted = case.spec(tmp_path, cluster__partitions=5 - number % 4)
        interrupted(parted, executors.of(case.modes[0], spec), stage, attempt="resume" if number else "new")
    run(spec, executors.of(case.modes[0], spec), attempt="resume")
    assert not differing(spec, calm(case))
    assert states(spec) == ["committed"]


def interrupted(spec: ReleaseSpec, executor: Executor, chosen: str, **options: Any) -> None:
    """A run that ends when a stage begins."""

    def progress(stage: str, *_: int) -> None:
        if stage == chosen:
            raise _Interrupted

    with pytest.raises(_Interrupted):
        run(spec, executor, progress=progress, **options)
    assert states(spec) in (["reserved"], ["drawing"])
    assert not Path(spec.output.path, "_manifest.json").exists()


@pytest.mark.slow
@families
def test_tasks_and_steps_that_run_twice_change_no_bit(
    case: Case, executors: Executors, tmp_path: Path, calm: Callable[[Case], Calm]
) -> None:
    spec = case.project(tmp_path, cluster__partitions=3)
    twice = Twice() if case in LOCAL else executors.of(case.modes[0], spec)
    with runs_use(twice), Run(spec, fixed_key=KEY) as made:
        for name, step in made.steps.items():
            step()
            if name != "publish":
                step()
    assert not differing(spec, calm(case))
    assert states(spec) == ["committed"]


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [HISTOGRAM, TALLY_CASE], ids=lambda case: case.name)
def test_tasks_stay_within_the_memory_of_the_plan(case: Case, tmp_path: Path) -> None:
    rows = 2 * BATCH_ROWS + 1
    spec = replace(case, rows=rows).project(tmp_path, cluster__partitions=2)
    run(spec, measured := Measured())
    planned, largest = make_plan(spec).needs().task_bytes, max(measured.peaks.values())
    assert BATCH_ROWS < largest < planned, measured.peaks


# --- bytes that are no text -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [HISTOGRAM, MIXING, DISCOVERING, DISCOVERY], ids=lambda case: case.name)
def test_bytes_that_are_no_text_are_a_value_outside_the_domain(
    case: Case, executors: Executors, tmp_path: Path
) -> None:
    """A release or a refusal, the same as of a text outside the domain (in a discovery, of one that is passed over)."""
    found = []
    for name, value in (("bytes", b"\xff\xc3"), ("text", b"x" * 5_000)):
        folder = tmp_path / name
        spec = case.project(folder)
        table = pq.read_table(folder / "table.parquet")
        column = case.bad[0] if case.bad else table.column_names[0]
        values = table[column].cast(pa.string()).cast(pa.binary()).to_pylist()
        values[len(values) // 2] = value
        place = table.schema.get_field_index(column)
        case.write(folder, table.set_column(place, column, pa.array(values, pa.binary()).view(pa.string())))
        if spec.protects_only_units:
            case.admit(folder)
        try:
            run(spec, executors.of("in-process", spec))
            found.append(content(spec)[0])
        except DataError as error:
            found.append([type(error).__name__.encode(), str(error).encode()])
    assert found[0] == found[1]


# --- refusals ---------------------------------------------------------------------------------------------------------


def refused(spec: ReleaseSpec, executor: Executor, log: pytest.LogCaptureFixture, **options: Any) -> DpdistError:
    """How a release is refused; nothing is published, and neither message nor log tells a value or a count."""
    with log.at_level(logging.DEBUG, logger="dpdist"), pytest.raises(DpdistError) as caught:
        run(spec, executor, **options)
    assert not Path(spec.output.path, "_manifest.json").exists()
    return caught.value


@pairs
def test_a_bad_table_is_refused_by_column_and_stays_charged(
    case: Case, mode: str, executors: Executors, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = case.project(tmp_path, cluster__partitions=3)
    case.spoil(tmp_path)
    error = refused(spec, executors.of(mode, spec), caplog)
    assert case.bad is not None
    column, value = case.bad
    if case in LOCAL:
        assert isinstance(error, OutOfDomain)
        assert column in str(error)
    else:  # of a client's table the coordinator learns no more
        assert isinstance(error, RoundFailed)
        assert f"client {CLIENTS[0]!r}" in str(error)
    told = readable(str(error), repr(error), caplog.text)
    assert str(value) not in told
    assert not numbers_of(case) & set(re.findall(r"\d+", told.replace(",", "")))
    assert states(spec) == ["drawing"]


@local
def test_a_table_that_is_not_there_costs_nothing(
    case: Case, executors: Executors, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = case.project(tmp_path)
    (tmp_path / "table.parquet").unlink()
    error = refused(spec, executors.of(case.modes[0], spec), caplog)
    assert isinstance(error, DataNotFound)
    assert "table.parquet" in str(error)
    assert states(spec) == []


@families
def test_fewer_records_than_declared_are_told_by_noise_alone(
    case: Case, executors: Executors, tmp_path: Path, caplog: pytest.LogCaptureFixture, calm: Callable[[Case], Calm]
) -> None:
    """A release that needs the bound refuses after a noisy check and stays charged; another one goes on to its end."""
    spec = case.project(tmp_path, data__minimum_records=case.rows * 3)
    with suppress(CheckFailed):
        interrupted(spec, executors.of(case.modes[0], spec), calm(case).stages[-1])
        return
    assert states(spec) == ["drawing"]
    if make_plan(spec).event is None:  # it may say why, and says it without a charge
        return
    told = readable(str(refused(spec, executors.of(case.modes[0], spec), caplog, attempt="resume")), caplog.text)
    assert "minimum_records" in told
    assert not numbers_of(case) & set(re.findall(r"\d+", told.replace(",", "")))


def numbers_of(case: Case) -> set[str]:
    """The number of records, which must stand in no text that others read; one of two-stage lid releases as many."""
    return set() if case in (LID, PARTIES) else {str(case.rows), str(case.rows - 1)}


# --- what is published ------------------------------------------------------------------------------------------------


@families
def test_the_manifest_validates_and_holds_nothing_private(case: Case, calm: Callable[[Case], Calm]) -> None:
    """Of a fixed key, which gives no noisy count that is the true one by chance."""
    spec = calm(case).spec
    plan = make_plan(spec)
    report = verify(spec.output.path)
    published = read_manifest(spec.output.path)
    text = Path(spec.output.path, "_manifest.json").read_text()
    _of_manifests().validate(json.loads(text))
    assert report.kind == published.kind == spec.kind
    found = "discovered" in published.parameters  # the manifest has the spec and the schema with what was found
    assert (published.spec_sha256 != spec.fingerprint) == found
    assert list(published.guarantees) == [guarantee.to_json() for guarantee in plan.guarantees]
    assert published.guarantee.startswith(plan.guarantees[0].sentence())
    assert found or published.table == plan.released
    assert report.unlisted == ()
    told = readable(text, calm(case).log).replace(",", "")
    assert not numbers_of(case) & set(re.findall(r"\d+", told))
    assert str(Path(spec.work).parent) not in text
    (work,) = Path(spec.work).iterdir()
    assert not (work / "key.json").exists()
    assert json.loads((work / "run-record.json").read_text())["confidential"]


@cache
def _of_manifests() -> Draft202012Validator:
    return Draft202012Validator(manifest.json_schema())


# --- the list has power -----------------------------------------------------------------------------------------------


def _early(attempt: Attempt[Any, Any]) -> ReleasedRecords:
    """Draws noise before the ledger knows."""
    load_noise(attempt.key).discrete_laplace("early", 1, scale=2)
    return tally(attempt)


def _changing(attempt: Attempt[Any, Any]) -> ReleasedRecords:
    """Releases what depends on the layout of the table."""
    released = tally(attempt)
    return ReleasedRecords(released.parts[: len(attempt.table.on(attempt.executor).partitions)])


def _telling(attempt: Attempt[Any, Any]) -> ReleasedRecords:
    """Refuses with a number of records."""
    passes = Passes(attempt)
    passes.run(pair_counts_operator([4]), stage="counting")
    rows = passes.report.kept if passes.report is not None else 0
    if rows < attempt.spec.data.minimum_records:
        attempt.before_noise()
        raise CheckFailed(f"data.minimum_records is more than {rows}")
    return tally(attempt)


def _opening(spec: Any) -> EventPlan:
    """Plans by the table."""
    import pyarrow.parquet as pq

    return EventPlan(spec=spec, event=DiscreteLaplace(scale=pq.read_metadata(spec.data.path).num_rows))


@pytest.mark.parametrize(
    ("broken", "seen"),
    [
        (replace(TALLY, stages=lambda plan: (Stage("a", _early), Stage("b", write_records))), "charge"),
        (replace(TALLY, stages=lambda plan: (Stage("a", _changing), Stage("b", write_records))), "bits"),
        (replace(TALLY, stages=lambda plan: (Stage("a", _telling), Stage("b", write_records))), "refusal"),
        (replace(TALLY, plan=_opening), "plan"),
    ],
    ids=["draws before the charge", "depends on partitions", "tells a number", "reads to plan"],
)
def test_a_family_that_breaks_a_property_is_found(
    broken: Family[Any, Any],
    seen: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    calm: Callable[[Case], Calm],
    caplog: pytest.LogCaptureFixture,
    executors: Executors,
) -> None:
    calm(TALLY_CASE)
    monkeypatch.setitem(FAMILIES, "tally", broken)
    properties: dict[str, Callable[[], None]] = {
        "plan": lambda: test_a_plan_reads_no_record(TALLY_CASE, tmp_path),
        "charge": lambda: test_the_charge_is_in_the_ledger_before_noise_is_drawn(
            replace(TALLY_CASE, name="broken"), lambda case: released(case, tmp_path, executors)
        ),
        "bits": lambda: test_chunks_workers_and_resumed_runs_change_no_bit(
            TALLY_CASE, "threads", executors, tmp_path, calm
        ),
        "refusal": lambda: test_fewer_records_than_declared_are_told_by_noise_alone(
            TALLY_CASE, executors, tmp_path, caplog, calm
        ),
    }
    with pytest.raises((AssertionError, FileNotFoundError, DataError)):
        properties[seen]()
