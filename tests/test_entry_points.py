"""A family of another distribution is a family: the command line finds, plans, releases, verifies and audits it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from commands import Command

from dpdist.errors import SpecError
from dpdist.ledger import Books
from dpdist.publish.verify import read_release
from dpdist.spec.kinds import FAMILIES, GROUP, Families
from dpdist.spec.reader import load

ROOT = Path(__file__).parent.parent
SHIPPED = ("discovery", "histogram", "mixing", "plausible-deniability", "relational", "synthesis", "two-stage")
SPEC: dict[str, Any] = {
    "kind": "headcount",
    "name": "people",
    "dataset": "people",
    "data": {"path": "people.parquet", "minimum_records": 500},
    "schema": {"attributes": [{"name": "sex", "kind": "categorical", "values": ["f", "m"]}]},
    "output": {"path": "release"},
}


@pytest.fixture(scope="session")
def headcount(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the distribution of `family_distribution` is installed."""
    folder = tmp_path_factory.mktemp("headcount")
    shutil.copytree(ROOT / "tests" / "family_distribution", folder / "source")
    install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--offline", "--python", sys.executable]
    without = ["--no-deps", "--no-build-isolation", "--target", str(folder / "installed")]
    subprocess.run([*install, *without, str(folder / "source")], check=True)
    return folder / "installed"


@pytest.fixture
def families(monkeypatch: pytest.MonkeyPatch) -> Iterator[Families]:
    """The families of a process that has looked for none yet."""
    monkeypatch.setattr(FAMILIES, "__dict__", vars(Families()))
    yield FAMILIES
    sys.modules.pop("headcount", None)


def offer(folder: Path, name: str, line: str = "") -> None:
    """Write the metadata of a distribution with an entry point, or without any."""
    metadata = folder / f"{name}-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[{GROUP}]\n{line}\n" if line else "")


def test_a_process_finds_it_and_imports_no_family_to_list_the_kinds(headcount: Path) -> None:
    code = """
import json, sys
from dpdist.families.base.registry import FAMILIES
kinds = list(FAMILIES)
folders = {name.split(".")[2] for name in sys.modules if name.startswith("dpdist.families.")}
print(json.dumps([kinds, sorted(folders), "headcount" in sys.modules, FAMILIES["headcount"].kind]))
"""
    environment = {**os.environ, "PYTHONPATH": str(headcount)}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(found.stdout) == [[*SHIPPED, "headcount"], ["base"], False, "headcount"]


def test_the_command_line_plans_releases_verifies_and_audits_it(
    headcount: Path, families: Families, dpdist: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"sex": ["f", "m"] * 500}), tmp_path / "people.parquet")
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    made = dpdist("ledger", "create", "people", "--epsilon", "4", "--delta", "1e-8")
    assert made.code == 0, made.err
    unknown = dpdist("plan", "spec.yaml")
    assert unknown.code
    assert f"`kind` is 'headcount'; expected one of {', '.join(SHIPPED)}" in " ".join(unknown.err.split())

    monkeypatch.setattr(FAMILIES, "__dict__", vars(Families()))
    monkeypatch.syspath_prepend(headcount)
    jsonschema.validate(SPEC, dpdist("schema", "json", "spec").json)
    assert dpdist("plan", "spec.yaml", "--json").json["epsilon"] == 0.5
    released = dpdist("release", "spec.yaml")
    assert released.code == 0, released.err
    verified = dpdist("verify", "release", "--ledger", f"sqlite:///{tmp_path}/ledger.db")
    assert verified.code == 0, verified.err
    (number,) = read_release("release")["value"].to_pylist()
    assert abs(number - 1_000) < 2 * 50  # e^-50
    (finding,) = dpdist("audit", "spec.yaml", "--json").json
    assert 0 < finding["lower_bound"] <= finding["epsilon"] == 0.5
    with closing(Books.open(f"sqlite:///{tmp_path}/ledger.db")) as ledger:
        assert len(ledger.show("people").attempts) == 1


def test_its_event_is_read_by_whoever_has_it_installed(headcount: Path) -> None:
    code = """
import sys
from dpdist.errors import AccountingError
from dpdist.privacy import accountant, events
stored = {"type": "composed/1", "events": [{"type": "headcount/1", "scale": 2.0}]}
try:
    events.from_json(stored)
except AccountingError as error:
    print(str(error)[:40])
sys.path.insert(0, sys.argv[1])
event = events.from_json(stored)
assert event.to_json() == stored
print(accountant.epsilon(event, delta=0), accountant.epsilon(events.Composed((event, event)), delta=1e-9))
"""
    found = subprocess.run([sys.executable, "-c", code, headcount], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == ["unknown privacy event type 'headcount/1'", "0.5 1.0"]


def test_a_kind_of_dpdist_cannot_be_taken(families: Families, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(tmp_path, "taker", "synthesis = json:dumps")
    monkeypatch.syspath_prepend(tmp_path)
    assert families["synthesis"].spec_class.__name__ == "WholeSynthesisSpec"
    assert list(families) == list(SHIPPED)


@pytest.mark.parametrize(
    ("offered", "message"),
    [
        (["there = nowhere.at_all:FAMILY"], "kind 'there' of other0 cannot be imported .*install it again"),
        (["there = json:FAMILY"], "kind 'there' of other0 cannot be imported"),
        (["there = json:dumps"], "kind 'there' of other0: json:dumps is no `Family` of this kind"),
        (["there = dpdist.families.histogram:FAMILY"], "histogram:FAMILY is no `Family` of this kind"),
        (["there = json:dumps", "there = json:loads"], "offered by other0 and other1: uninstall all but one"),
    ],
    ids=["no module", "no object", "no family", "another kind", "two"],
)
def test_a_broken_offer_is_refused_by_name(
    families: Families, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offered: list[str], message: str
) -> None:
    for number, line in enumerate(offered):
        offer(tmp_path, f"other{number}", line)
    monkeypatch.syspath_prepend(tmp_path)
    assert list(families) == [*SHIPPED, "there"]
    with pytest.raises(SpecError, match=message):
        load({**SPEC, "kind": "there"})


@pytest.mark.parametrize(
    ("installed", "message"), [(False, "dpdist is not installed"), (True, "older than its code")], ids=["no", "old"]
)
def test_code_without_its_installation_is_refused(
    families: Families, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool, message: str
) -> None:
    offer(tmp_path, "other", "there = json:dumps")
    if installed:
        offer(tmp_path, "dpdist")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for kind in ("histogram", "there"):
        with pytest.raises(SpecError, match=f"{message}.*make setup"):
            load({**SPEC, "kind": kind})
