"""A series by its schedule: a clock that the test moves."""

from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpdist.errors import BudgetExceeded
from dpdist.families.base.attempt import Attempt
from dpdist.inference.records import recompute
from dpdist.inference.series import Series
from dpdist.ledger import Books
from dpdist.lifecycle.conformity import admit, check_input
from dpdist.lifecycle.series import run_due
from dpdist.model.earlier import repeat_evidence
from dpdist.publish.account import verify_with_account
from dpdist.publish.manifest import MANIFEST
from dpdist.publish.verify import read_manifest
from dpdist.spec.contract import Contract
from dpdist.spec.reader import load

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

SCHEMA = {"attributes": [{"name": name, "kind": "categorical", "values": [1, 2, 3]} for name in ("a", "b")]}


class Killed(BaseException):
    """Stands for the end of the process."""


class Registry:
    """Who brings the tables of months, keeps the contract, and runs the flow on its schedule."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, first: str = "2026-09") -> None:
        import flows.release

        flow = flows.release.release
        monkeypatch.setattr(flows.release, "DELAYS", ())
        self.folder, self._flow, self._patch = folder, flow, monkeypatch
        (folder / "made").mkdir()
        contract: dict[str, Any] = {
            "schema": SCHEMA,
            "data": {"path": f"{folder}/{first}.parquet", "later": [f"{folder}/????-??.parquet"], "every": "month"},
            "minimum_records": 500,
            "epsilon": 1.45,
            "delta": "2e-6",
            "public_tables": [f"{folder}/made/*"],
            "period": {"per": "year", "epsilon": 1.45},
        }
        self.ledger = Books.open(f"sqlite:///{folder}/ledger.db")
        self.ledger.create_from_contract("births", Contract.model_validate(contract))
        self.series: dict[str, Any] = {
            "every": "month",
            "first": first,
            "roll_up": ["quarter", "year"],
            "shares": {"month": 0.7, "quarter": 0.15, "year": 0.15},
        }

    def bring(self, *months: str, rows: int = 600) -> None:
        contract = Contract.from_text(self.ledger.dataset("births").contract or "")
        for month in months:
            rng, path = np.random.default_rng(rows), f"{self.folder}/{month}.parquet"
            pq.write_table(pa.table({name: rng.integers(1, 4, rows) for name in ("a", "b")}), path)
            admit(self.ledger, "births", contract, check_input(contract, [path]))

    def run(self, day: str) -> list[str]:
        """The periods that the flow released on a day."""
        import flows.release

        self._patch.setattr(flows.release, "_day", lambda: date.fromisoformat(day))
        self._patch.setattr("dpdist.ledger.book.now", lambda: f"{day}T12:00:00.000+00:00")
        released = str(self._flow(self.spec))
        return [uri.rpartition("/")[2] for uri in released.split(", ") if uri]

    @property
    def spec(self) -> dict[str, Any]:
        return {
            "kind": "synthesis",
            "name": "births",
            "dataset": "births",
            "schema": SCHEMA,
            "data": {"path": f"{self.folder}/{{date:%Y-%m}}.parquet", "minimum_records": 500},
            "output": {"path": f"{self.folder}/made"},
            "ledger": f"sqlite:///{self.folder}/ledger.db",
            "work": f"{self.folder}/work",
            "cluster": {"mode": "in-process"},
            "privacy": {"epsilon": 1, "delta": 1e-6, "accuracy_share": 0},
            "model": {"balance": 0, "rounds": 0},
            "series": self.series,
        }

    def killed(self, day: str) -> None:
        """The flow ends with its process, after it stored its first noise."""
        plain = Attempt.stored

        def ending(self: Attempt[Any, Any], kind: Any, make: Any) -> Any:
            plain(self, kind, make)
            raise Killed

        with self._patch.context() as broken:
            broken.setattr(Attempt, "stored", ending)
            with pytest.raises(Killed):
                self.run(day)

    def verified(self, *periods: str) -> None:
        """One charge each, verified with the account, and made again."""
        assert self.charges() == {(f"births-2026-{period}", "committed"): 1 for period in periods}
        for period in periods:
            place = f"{self.folder}/made/2026-{period}"
            report = verify_with_account(self.ledger, place)
            assert recompute(place).records == report.records
            assert not repeat_evidence(place, report.manifest_sha256, {})[1]

    def evidence(self, period: str) -> dict[str, list[str]]:
        """What a release names as evidence."""
        learned: Any = read_manifest(f"{self.folder}/made/{period}").parameters["learned"]
        return {kind: [one["release"][12:] for one in of] for kind, of in learned["evidence"].items()}

    def charges(self) -> Counter[tuple[str, str]]:
        return Counter((one.release, one.state) for one in self.ledger.show("births").attempts)


def test_the_months_of_a_year(tmp_path: Path, prefect_home: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """September never comes, October is corrected, November is late, and in December the process ends midway."""
    registry = Registry(tmp_path, monkeypatch)
    registry.bring("2026-10")
    assert registry.run("2026-11-02") == ["2026-10"]
    registry.bring("2026-10", rows=700)
    registry.bring("2026-12")
    registry.killed("2027-01-02")
    assert registry.charges() == {("births-2026-10", "committed"): 1, ("births-2026-12", "drawing"): 1}
    registry.bring("2026-11")
    registry.series |= {"versions": {"2026-10": 2}}  # only now is the correction released, and charged
    assert registry.run("2027-01-04") == [
        "2026-12",
        "2026-10-v2",
        "2026-11",
        "2026-q4",
    ]  # what was interrupted goes first
    registry.series |= {"skip": ["2026-09"]}
    assert registry.run("2027-01-05") == ["2026-year"]
    registry.verified("10", "10-v2", "11", "12", "q4", "year")
    assert registry.evidence("2026-year") == {"larger": ["q4"], "sum": ["10-v2", "11", "12"]}
    spent = [registry.ledger.remaining("births", months=[f"2026-{m}"]).epsilon_spent for m in (11, 10)]
    assert 0.9 < float(spent[0] or 0) < 1.02 < 1.3 < float(spent[1] or 0) < 1.45  # by the ledger's filters
    registry.series |= {"versions": {"2026-10": 3}}
    with pytest.raises(BudgetExceeded):
        registry.run("2027-01-06")
    assert Series.open(tmp_path / "made").periods == ("2026-10-v2", "2026-11", "2026-12")


def test_a_whole_year(tmp_path: Path, prefect_home: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """March is corrected in June, May never comes, July comes in September, and in November the process ends midway."""
    import flows.evaluate

    registry, released = Registry(tmp_path, monkeypatch, first="2026-01"), []
    for month in range(1, 13):
        registry.bring(*(f"2026-{come:02d}" for come in {5: (), 7: (), 9: (7, 9)}.get(month, (month,))))
        if month == 6:
            registry.bring("2026-03", rows=700)
            registry.series |= {"skip": ["2026-05"], "versions": {"2026-03": 2}}
        day = f"{2026 + month // 12}-{month % 12 + 1:02d}-02"
        if month == 11:
            registry.killed(day)
            assert registry.charges()["births-2026-11", "drawing"] == 1
        released.append([name[5:] for name in registry.run(day)])
    assert registry.run("2027-01-03") == []
    said: list[str] = []
    assert run_due(date(2027, 1, 3), lambda more: load(registry.spec, more), str, said.append) == []
    assert said == ["births-2026-q1 was made without 2026-03-v2: a version in series.versions has them"]
    manifest = tmp_path / "made" / "2026-q1" / MANIFEST
    content = manifest.read_bytes()
    for damaged in (b"{", content.replace(b'"sum"', b'"som"')):
        manifest.write_bytes(damaged)
        assert run_due(date(2027, 1, 3), lambda more: load(registry.spec, more), str, said.append) == []
    manifest.write_bytes(content)
    assert said[1:] == ["births-2026-q1: which months it was made of could not be read from its manifest"] * 2
    assert released == [
        ["01"],
        ["02"],
        ["03", "q1"],
        ["04"],
        [],
        ["03-v2", "06", "q2"],
        [],
        ["08"],
        ["07", "09", "q3"],
        ["10"],
        ["11"],
        ["12", "q4", "year"],
    ]
    registry.verified(*(period for periods in released for period in periods))
    months = ["01", "02", "03-v2", "04", *(f"{month:02d}" for month in range(6, 13))]
    assert registry.evidence("2026-year") == {"larger": ["q1", "q2", "q3", "q4"], "sum": months}
    assert registry.evidence("2026-q1") == {"sum": ["01", "02", "03"]}
    assert registry.evidence("2026-q4")["previous"] == ["q1", "q2", "q3"]
    spent = [registry.ledger.remaining("births", months=[f"2026-{m}"]).epsilon_spent for m in ("11", "03")]
    assert 0.9 < float(spent[0] or 0) < 1.02 < 1.3 < float(spent[1] or 0) < 1.45  # by the ledger's filters
    registry.series |= {"versions": {"2026-03": 3}}
    with pytest.raises(BudgetExceeded):
        registry.run("2027-01-06")
    series = Series.open(tmp_path / "made")
    assert series.periods == tuple(f"2026-{month}" for month in months)
    (change,) = series.answer("change of share where a = 1 between 2026-01 and 2026-12")
    assert change.note == "with what 2026-q2, 2026-q3, 2026-q4, 2026-year measured"  # q1 has March uncorrected
    months_alone = replace(series, roll_ups=()).answer("share where a = 1")
    together = series.answer("share where a = 1")
    assert all(one.deviation < other.deviation for one, other in zip(together, months_alone, strict=True))
    monkeypatch.setenv("DPDIST_PAGES", str(tmp_path))
    page = flows.evaluate.evaluate(
        release=f"{tmp_path}/made/2026-year",
        output="page",
        against=sorted(map(str, tmp_path.glob("2026-??.parquet"))),
        options={"attacks": False, "train": 60, "test": 60},
    )
    assert page == str(tmp_path / "page" / "evaluation.html")
