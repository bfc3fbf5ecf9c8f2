"""Golden digests: what every shipped spec releases under a fixed key, recorded as SHA-256 in `digests.json`.

A change of the code that is not meant to change a release must leave all digests as they are. A change that is meant to
do so replaces them in the same commit, which says why::

    python tests/contract/test_digests.py --write [CASE ...]

Each spec of `deploy/releases` runs on a small table: rows of the public table that it names (`DPDIST_DATA`), or a
made-up table. `SHIPPED` gives the tables, and lowers declared bounds and sizes to match. `VARIANTS` adds settings that
no shipped spec has. The tables lie in a temporary folder, where a copy of the specs names them.

`digests.json` records the content of each part as a reader sees it (columns, types, nulls and values to the last bit),
and each field of the manifest by itself, so that a failure says which one differs. It leaves out the attempt, the day,
the versions of packages, the sentences of the guarantees, and the files.

Digests are the same on every processor. `processors.py` runs all cases where elementary functions, linear algebra and
costs err by a little, and where NumPy, OpenBLAS and the C library take the code of other processors.
"""

import argparse
import base64
import contextlib
import hashlib
import json
import os
import random
import runpy
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.linalg  # noqa: F401  has a BLAS of its own, which is limited to one thread below as that of NumPy is
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from distributed import LocalCluster
from threadpoolctl import threadpool_limits

from dpdist.ledger import Books
from dpdist.lifecycle.conformity import check_input
from dpdist.lifecycle.run import run_release
from dpdist.spec.contract import Contract
from dpdist.spec.reader import load  # these few are all that is used of dpdist
from dpdist.spec.release import ReleaseSpec

ROOT = Path(__file__).resolve().parents[2]
RELEASES, RECIPES = ROOT / "deploy" / "releases", ROOT / "deploy" / "recipes"
RECORDED = Path(__file__).with_name("digests.json")
KEY = "0f1e2d3c4b5a69788796a5b4c3d2e1f0" * 2
GUARANTEES = ("dp", "pd-per-record", "pml", "lid")

Find = Callable[[str], Path]
"""The path of a public table, by the name of its file."""


# --- tables: each function writes below the current folder what a spec names ------------------------------------------


def _csv(source: str, target: str, *, rows: int, every: int = 1, header: bool = True) -> Callable[[Find], None]:
    """Some lines of a public CSV file."""

    def write(find: Find) -> None:
        lines = find(source).read_bytes().splitlines(keepends=True)
        top = lines[:1] if header else []
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(target).write_bytes(b"".join(top + lines[len(top) :: every][:rows]))

    return write


def _parquet(source: str, target: str, *, rows: int, every: int = 1) -> Callable[[Find], None]:
    """Some rows of a public Parquet file, in row groups that can be read apart."""

    def write(find: Find) -> None:
        table = pq.read_table(find(source))
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        kept = table.take(list(range(0, table.num_rows, every))[:rows])
        pq.write_table(kept, target, row_group_size=rows // 8)

    return write


def _together(*tables: Callable[[Find], None]) -> Callable[[Find], None]:
    """Several tables."""

    def write(find: Find) -> None:
        for table in tables:
            table(find)

    return write


def _census(folder: str, *, rows: int) -> Callable[[Find], None]:
    """A made-up table of the schema of ACS 2013, in two files; its columns depend on each other."""

    def write(_: Find) -> None:
        schema = yaml.safe_load((RELEASES / "schemas" / "acs2013.yaml").read_text())
        sizes = {"age": 79, "hpw": 99} | {a["name"]: len(a["values"]) for a in schema["attributes"] if "values" in a}
        draw = random.Random(0).random  # the same on every machine and in every version of Python
        shared = [draw() for _ in range(rows)]
        columns = {
            name: [1 + int(size * (0.6 * u + 0.4 * draw()) ** 2) for u in shared] for name, size in sizes.items()
        }
        table = pa.table(columns).select([a["name"] for a in schema["attributes"]])
        Path(folder).mkdir(parents=True)
        for number, start in enumerate((0, rows // 3)):
            rest = table.slice(start, rows // 3 if number == 0 else None)
            pq.write_table(rest, f"{folder}/{number}.parquet", row_group_size=rows // 8)

    return write


def _with_incomes() -> dict[str, Any]:
    """The schema of persons of households with incomes that are no whole numbers."""
    schema: dict[str, Any] = yaml.safe_load((RELEASES / "schemas/acs2024-households.yaml").read_text())
    incomes = {"name": "PINCP", "kind": "number", "bounds": [-20_000, 2_000_000], "missing": {"category": "none"}}
    schema["attributes"].append(incomes | {"bins": {"edges": [-20_000, 5_000, 20_000, 40_000, 60_000, 100_000]}})
    return schema


def _years(find: Find) -> None:
    """Curves of the unemployment rate, by the recipe."""
    Path("data").mkdir()
    runpy.run_path(str(RECIPES / "unrate_years.py"))["main"](str(find("UNRATE.csv")), "data/unrate_years.csv")


def _months(find: Find) -> None:
    """Months of the unemployment rate, by the recipe."""
    Path("data").mkdir()
    runpy.run_path(str(RECIPES / "unrate_months.py"))["main"](str(find("UNRATE.csv")), "data/unrate_months.csv")


def _digits(find: Find) -> None:
    """The first images of MNIST, by the recipe."""
    recipe, images = runpy.run_path(str(RECIPES / "mnist.py")), 1600
    digits = recipe["read"](find("mnist_t10k_labels.idx1.gz"), 8)
    pixels = recipe["read"](find("mnist_t10k_images.idx3.gz"), 16).reshape(len(digits), -1)
    Path("data/mnist").mkdir(parents=True)
    made = recipe["table"](pixels[:images], digits[:images])
    pq.write_table(made, "data/mnist/train.parquet", row_group_size=images // 4)


def _clients(find: Find) -> None:
    """Rows of Adult dealt to the clients of the federated spec, each with an identity that is always the same."""
    lines = find("adult.data").read_bytes().splitlines(keepends=True)[:2_000]
    for number, client in enumerate(_members()):
        folder = Path(client["path"]).parent
        folder.mkdir(parents=True)
        Path(client["path"]).write_bytes(b"".join(lines[number :: len(_members())]))
        pem = _identity(client["name"]).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        Path(client["identity"]).touch(mode=0o600)
        Path(client["identity"]).write_bytes(pem)


def _identity(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


def _members() -> list[dict[str, Any]]:
    """The first clients of the shipped federated spec, with the public halves of their identities here."""
    spec = yaml.safe_load((RELEASES / "adult-federated.yaml").read_text())
    clients: list[dict[str, Any]] = spec["federated"]["clients"][:4]
    for client in clients:
        public = _identity(client["name"]).public_key()
        der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        client["public_key"] = base64.b64encode(der).decode()
    return clients


# --- cases ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A shipped spec, made small.

    Attributes
    ----------
    table : callable
        Writes the tables that the spec names below the current folder.
    settings : mapping
        What is set otherwise, by dotted path.
    """

    table: Callable[[Find], None]
    settings: Mapping[str, Any] = field(default_factory=dict)
    spec: str = ""


def _variant(name: str, **settings: Any) -> Case:
    """A case with other settings, by dotted path, ``__`` for the dots; what its release depends on stays."""
    case = {**SHIPPED, "per record": _PER_RECORD}[name]
    changes = {path.replace("__", "."): value for path, value in settings.items()}
    return Case(case.table, {**case.settings, **changes}, spec=case.spec or name)


SEEDS = {"privacy.checked_candidates": 20_000, "synthesis.records": 2_500}
ACS, ADULT = "acs2024_workers.parquet", "adult.data"
_BOTH = _together(
    _csv(ADULT, f"data/{ADULT}", rows=6_000, header=False),
    _csv("adult.test", "data/adult.test", rows=3_000, header=False),
)
_PER_RECORD = Case(
    _census("demo/census", rows=30_000),
    {**SEEDS, "data.minimum_records": 28_000},
    spec=str(Path(__file__).with_name("per-record")),
)
SHIPPED = {
    # all 100,000 records, so that the search finds parents and the privacy test has seeds
    "acs2013-paper": Case(_csv("acs2013_sgf_100k.csv", "data/acs2013.csv", rows=100_000), SEEDS),
    "acs2024-paper": Case(
        _parquet(ACS, f"data/{ACS}", rows=40_000, every=30), {**SEEDS, "data.minimum_records": 35_000}
    ),
    "acs2013": Case(
        _csv("acs2013_sgf_100k.csv", "data/acs2013.csv", rows=10_000),
        {"data.minimum_records": 9_000, "synthesis.records": 9_000},
    ),
    "acs2024": Case(
        _parquet(ACS, f"data/{ACS}", rows=10_000, every=100),
        {"data.minimum_records": 9_000, "synthesis.records": 5_000},
    ),
    "acs2024-households": Case(
        _together(
            _parquet("acs2024_persons.parquet", "data/acs2024_persons.parquet", rows=10_000),
            _parquet("acs2024_households.parquet", "data/acs2024_households.parquet", rows=4_000),
        ),
        {"data.minimum_records": 9_000, "parent.records": 450, "schema": _with_incomes()},
    ),
    "acs2024-persons": Case(
        _parquet("acs2024_persons.parquet", "data/acs2024_persons.parquet", rows=10_000, every=39),
        {"data.minimum_records": 9_000, "synthesis.records": 5_000, "model.rounds": 1, "privacy.accuracy_share": 0},
    ),
    "acs2024-whole": Case(
        _parquet(ACS, f"data/{ACS}", rows=120_000, every=11),
        {**SEEDS, "data.minimum_records": 110_000, "privacy.limit": 8, "synthesis.minimum_pass_rate": 0.3},
    ),
    "census-100m": Case(
        _parquet(ACS, "data/census/0.parquet", rows=120_000, every=11),
        {
            **SEEDS,
            "data.minimum_records": 110_000,
            "privacy.limit": 8,
            "privacy.seed_check_epsilon": 0.1,
            "privacy.deniability.k": 120,
            "privacy.deniability.epsilon0": 0.2,
            "synthesis.minimum_pass_rate": 0.3,
        },
    ),
    "demo": Case(_census("demo/census", rows=12_000), {"data.minimum_records": 11_000, "synthesis.records": 5_000}),
    "demo-seeds": Case(
        _census("demo/census", rows=120_000),
        {"data.minimum_records": 110_000, "privacy.limit": 8, "synthesis.minimum_pass_rate": 0.3},
    ),
    "compose": Case(
        _census("data/census", rows=12_000),
        {"data.minimum_records": 11_000, "synthesis.records": 5_000, "data.path": "data/census"},
    ),
    "adult": Case(_BOTH, {"data.minimum_records": 8_500, "synthesis.records": 2_500}),
    "adult-paper": Case(_BOTH, {"data.minimum_records": 8_500, "synthesis.records": 2_500}),
    "acs2024-histograms": Case(_parquet(ACS, f"data/{ACS}", rows=20_000, every=60), {"data.minimum_records": 18_000}),
    "acs2024-incomes": Case(
        _parquet("acs2024_persons.parquet", "data/acs2024_persons.parquet", rows=10_000, every=39),
        {"data.minimum_records": 9_000},
    ),
    "acs2024-pml": Case(_parquet(ACS, f"data/{ACS}", rows=20_000, every=60), {"data.minimum_records": 18_000}),
    "saleprice": Case(_csv("house_prices_saleprice.csv", "data/house_prices_saleprice.csv", rows=2_000)),
    "unrate": Case(_months),
    "curves": Case(_years),
    "adult-mixing": Case(
        _csv(ADULT, f"data/{ADULT}", rows=3_000, header=False),
        {
            "data.minimum_records": 2_800,
            "mixing.classes": {"<=50K": {"minimum": 300, "records": 100}, ">50K": {"minimum": 200, "records": 50}},
        },
    ),
    "mnist-mixing": Case(
        _digits,
        {"data.minimum_records": 1_500, "mixing.classes": {digit: {"minimum": 110, "records": 20} for digit in (0, 1)}},
    ),
    "adult-federated": Case(
        _clients,
        {
            "data.minimum_records": 480,
            "privacy.check_share": 0.1,
            "mixing.classes": {"<=50K": {"minimum": 200, "records": 100}, ">50K": {"minimum": 80, "records": 50}},
        },
    ),
    "california": Case(
        _csv("california_housing.csv", "data/california_housing.csv", rows=500, every=40), {"data.minimum_records": 450}
    ),
    "california-private": Case(
        _csv("california_housing.csv", "data/california_housing.csv", rows=2_000, every=10),
        {"data.minimum_records": 1_900, "prediction.records": 1_500},
    ),
    "census1080": Case(
        _csv("census_1080.csv", "data/census_1080.csv", rows=500, every=2), {"data.minimum_records": 450}
    ),
    "eia": Case(_csv("eia.csv", "data/eia.csv", rows=500, every=8), {"data.minimum_records": 450}),
    "insurance": Case(_csv("insurance.csv", "data/insurance.csv", rows=500, every=2), {"data.minimum_records": 450}),
    "tarragona": Case(_csv("tarragona.csv", "data/tarragona.csv", rows=500), {"data.minimum_records": 450}),
}
VARIANTS = {  # what no shipped spec asks for
    "per record": _PER_RECORD,
    "per record, entropies": _variant("per record", model__score="cfs", output__bins="label"),
    "per record, codes": _variant(
        "per record",
        model__order="learned",
        output__values="codes",
        synthesis__omega=10,
    ),
    "per record, independent": _variant(
        "per record", model__structure="independent", privacy__deniability__test="deterministic"
    ),
    "per record, regression": _variant("per record", model__regression=["age", "edu", "hpw"]),
    "synthesis, regressions": _variant(
        "adult",
        regressions=[
            "regression `education-num` on age, sex = 'Male', `hours-per-week`",
            "logistic regression income = '>50K' on age, `education-num` where sex = 'Male'",
        ],
    ),
    "mixing, vectors": _variant("adult-mixing", mixing__release="vectors"),
    "two-stage, Nystroem": _variant(
        "insurance", prediction__regression={"estimator": "nystroem", "landmarks": 50, "penalty": 1}
    ),
    "two-stage, groups": _variant(
        "insurance",
        prediction__regression={"estimator": "distributed", "group_rows": 100, "kernel": "matern"},
        prediction__first_stage="gaussian-copula",
        prediction__matching="independent",
    ),
    "two-stage, parties": Case(  # the regressions of pairs of parties take most of the time
        _csv("insurance.csv", "data/insurance.csv", rows=260, every=5),
        {"data.minimum_records": 240, "prediction.parties": {"column": "region"}},
        spec="insurance",
    ),
    "two-stage, modelled": _variant("california-private", prediction__features__products="modelled"),
}
CASES = SHIPPED | VARIANTS


# --- running a case ---------------------------------------------------------------------------------------------------


class _Interrupted(Exception):
    """Stands for the end of a run."""


def _file(name: str) -> Path:
    """The spec of a case, in its copy of the specs."""
    return Path("deploy/releases") / Path(f"{CASES[name].spec or name}.yaml").name


def _begin(name: str, find: Find) -> dict[str, Any]:
    """Write the tables and the ledgers of a case; return the settings of its spec, but for the cluster."""
    case, empty = CASES[name], not Path("deploy").exists()
    if empty:
        case.table(find)
        shutil.copytree(RELEASES, "deploy/releases")
        for own in RECORDED.parent.glob("*.yaml"):
            shutil.copy(own, "deploy/releases")
    tree = yaml.safe_load(_file(name).read_text())
    books = {tree["dataset"]: "sqlite:///ledger.db"}
    settings = {**case.settings, "ledger": "sqlite:///ledger.db", "work": "work"}
    settings |= {"output.path": "release", "output.storage": {}, "output.rows_per_part": 1_000}
    if "federated" in tree:
        settings["federated.clients"] = _members()
        books |= {client["dataset"]: client["ledger"] for client in _members()}
    for dataset, url in books.items() if empty else ():
        with contextlib.closing(Books.open(url)) as ledger:
            ledger.create_dataset(dataset, epsilon=100, delta="1e-3", guarantees=GUARANTEES)
    if tree["kind"] == "relational" and empty:
        _declare(load(_file(name), settings))
    return settings


def _declare(spec: ReleaseSpec) -> None:
    """Give the data set of a spec a contract that declares its unit, and admit its files."""
    tree = {"schema": spec.table, "unit": spec.unit, "minimum_records": spec.data.minimum_records}
    tree |= {"data": spec.data.model_dump(exclude={"minimum_records"}), "epsilon": 100, "delta": "1e-3"}
    contract = Contract.model_validate(tree).located()
    with contextlib.closing(Books.open(spec.ledger)) as ledger:
        ledger.amend(spec.dataset, contract, reason="its unit")
        ledger.admit_input(spec.dataset, fingerprint=check_input(contract).fingerprint, contract=contract.digest)


@contextlib.contextmanager
def _cluster(name: str) -> Iterator[dict[str, Any]]:
    """The section `cluster`: threads; or of a federated case a scheduler and the workers of the clients, as threads."""
    if name != "adult-federated":
        yield {"mode": "threads", "partitions": 3}
        return
    with LocalCluster(
        n_workers=0,
        threads_per_worker=1,
        processes=False,
        host="127.0.0.1",
        protocol="tcp://",
        dashboard_address="127.0.0.1:0",
    ) as local:
        for client in _members():
            options = {**local.new_spec["options"], "resources": {f"client-{client['name']}": 1}}
            local.worker_spec[client["name"]] = {**local.new_spec, "options": options}
        local.scale(len(_members()))
        local.wait_for_workers(len(_members()))
        yield {"mode": "address", "address": local.scheduler_address, "timeout": 60, "partitions": 3}


def released(name: str, find: Find, folder: Path) -> dict[str, Any]:
    """Release a case in an empty folder; return its digests."""
    return finish(name, find, folder, resume=False)


def interrupt(name: str, find: Find, folder: Path, *, stage: int) -> None:
    """Begin the release of a case in an empty folder, and end the run at the beginning of a stage."""
    stages: list[str] = []

    def progress(name: str, *_: int) -> None:
        if name not in stages:
            stages.append(name)
            if len(stages) == stage:
                raise _Interrupted

    with _spec(name, find, folder) as spec, contextlib.suppress(_Interrupted):
        run_release(spec, fixed_key=KEY, progress=progress)
    if len(stages) < stage or (folder / "release" / "_manifest.json").exists():
        raise ValueError(f"{name} has no stage {stage}: it has {', '.join(stages)}")


def finish(name: str, find: Find, folder: Path, *, resume: bool = True) -> dict[str, Any]:
    """Release a case, or resume it; return its digests."""
    with _spec(name, find, folder) as spec:
        run_release(spec, fixed_key=KEY, attempt="resume" if resume else "new")
        with contextlib.closing(Books.open(spec.ledger, create=False)) as ledger:
            if [attempt.state for attempt in ledger.show(spec.dataset).attempts] != ["committed"]:
                raise ValueError(f"{name} was not charged once")
    return digests(folder / "release")


@contextlib.contextmanager
def _spec(name: str, find: Find, folder: Path) -> Iterator[ReleaseSpec]:
    """The spec of a case in a folder, which gets its tables and ledgers if it is empty."""
    with contextlib.chdir(folder), threadpool_limits(1):  # as in worker processes
        settings = _begin(name, find)
        with _cluster(name) as cluster:
            yield load(_file(name), settings | {"cluster": cluster})


# --- digests ----------------------------------------------------------------------------------------------------------

LEFT_OUT = ("guarantee", "computational_security", "not_private", "attempt", "created", "parts", "files", "packages")
"""Fields of a manifest that are not compared."""


def digests(release: Path) -> dict[str, Any]:
    """The digests of a release: of its parts, and of the fields of its manifest."""
    manifest = json.loads((release / "_manifest.json").read_text())
    fields = {name: _without_sentences(value) for name, value in manifest.items() if name not in LEFT_OUT}
    return {
        "parts": [content_digest(pq.read_table(release / part["name"])) for part in manifest["parts"]],
        "manifest": {name: json_digest(value) for name, value in fields.items()},
    }


def content_digest(table: pa.Table) -> str:
    """SHA-256 of what a table holds, whatever file it came from: a dictionary of texts holds texts."""
    kinds = {f.name: str(f.type.value_type if pa.types.is_dictionary(f.type) else f.type) for f in table.schema}
    return json_digest([[name, kind, table[name].to_pylist()] for name, kind in kinds.items()])


def json_digest(value: object) -> str:
    """SHA-256 of the canonical JSON; a float in the shortest text that gives it again."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _without_sentences(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_sentences(item) for name, item in value.items() if name != "sentence"}
    return [_without_sentences(item) for item in value] if isinstance(value, list) else value


def recorded() -> dict[str, Any]:
    """What `digests.json` holds, by case."""
    cases: dict[str, Any] = json.loads(RECORDED.read_text())
    return cases


# --- tests ------------------------------------------------------------------------------------------------------------

ALIKE = (
    *("acs2013", "acs2024", "acs2024-persons", "compose", "acs2013-paper", "adult-paper", "acs2024-whole"),
    *("census-100m", "demo-seeds", "mnist-mixing", "census1080", "eia", "tarragona"),
)
"""Cases that go through the lines that others of their family go through: `processors.py` alone runs them, once."""

LONG = ("acs2024-households", "adult-federated", "demo", "two-stage, parties")
"""Cases that take more than two seconds, each beside a test of its family: `processors.py` alone runs them."""


def agree(name: str, found: dict[str, Any]) -> None:
    """The digests are the recorded ones; else say where they differ."""
    differ = []
    for section, expected in recorded()[name].items():
        if section == "parts":
            differ += [section] if found[section] != expected else []
        else:
            fields = sorted(found[section].keys() | expected)
            differ += [f"{section}.{key}" for key in fields if found[section].get(key) != expected.get(key)]
    assert not differ, f"{name}: another release than the recorded one, by {', '.join(differ)}"


def test_every_shipped_spec_is_a_case() -> None:
    assert set(SHIPPED) == {path.stem for path in RELEASES.glob("*.yaml")}
    assert set(CASES) == set(recorded())


@pytest.mark.parametrize("name", [name for name in CASES if name not in ALIKE + LONG])
def test_a_release_is_the_recorded_one(name: str, shared_data: Find, tmp_path: Path) -> None:
    agree(name, released(name, shared_data, tmp_path))


def test_a_small_difference_is_one() -> None:
    table = pa.table({"a": [1, 2, None], "b": [0.1, 0.2, 0.3], "c": ["x", "y", "z"]})
    others = [
        table.set_column(0, "a", pa.array([1, 3, None])),
        table.set_column(0, "a", pa.array([1, 2, 0])),
        table.set_column(0, "a", pa.array([1, 2, None], pa.int32())),
        table.set_column(1, "b", pa.array([0.1, 0.2, 0.30000000000000004])),
        table.set_column(1, "b", pa.array([-0.1, 0.2, 0.3])),
        table.rename_columns(["a", "b", "d"]),
        table.select(["b", "a", "c"]),
        table.take([1, 0, 2]),
        table.slice(0, 2),
    ]
    assert len({content_digest(other) for other in [table, *others]}) == 1 + len(others)
    assert content_digest(pa.concat_tables([table.slice(0, 1), table.slice(1)])) == content_digest(table)


# --- writing them -----------------------------------------------------------------------------------------------------


def write(names: Sequence[str], data: Path) -> None:
    """Release the cases and record their digests; the others stay as they are."""
    cases = recorded() if RECORDED.exists() else {}
    for name in names:
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            found = released(name, data.joinpath, Path(folder))
        print(f"{name}: {time.perf_counter() - start:.1f} s{'' if cases.get(name) == found else ', changed'}")
        cases[name] = found
    RECORDED.write_text(json.dumps({name: cases[name] for name in CASES}, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", required=True, help="write digests.json")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="these only")
    default = os.environ.get("DPDIST_DATA", ROOT.parent / "shared" / "data")
    parser.add_argument("--data", type=Path, default=default, help="folder of the public tables (DPDIST_DATA)")
    given = parser.parse_args()
    os.environ["DPDIST_TEST_KEYS"] = "1"
    write(given.cases or list(CASES), given.data.resolve())
