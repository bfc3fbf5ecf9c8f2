"""Caps that hold for each month's records, where a record is in the files of one month."""

from pathlib import Path
from typing import Any

import pytest
from charges import add_up

from dpdist.errors import BudgetExceeded, SpecError
from dpdist.ledger import Books, Charge
from dpdist.lifecycle.conformity import admit, check_input
from dpdist.spec.contract import Contract, adjacency_of, months_in

MONTHS = ("2026-01", "2026-02", "2026-03")


def contract(folder: Path, **changes: Any) -> Contract:
    tree: dict[str, Any] = {
        "schema": {"attributes": [{"name": "job", "kind": "categorical", "values": ["nurse", "cook"]}]},
        "data": {"path": str(folder / "2026-01.csv"), "later": [str(folder / "????-??.csv")], "every": "month"},
        "minimum_records": 2,
        "epsilon": 1,
        "delta": "1e-6",
    }
    return Contract.model_validate(tree | changes)


@pytest.fixture
def ledger(tmp_path: Path) -> Books:
    opened = Books.open(f"sqlite:///{tmp_path}/ledger.db", price=add_up)
    opened.create_from_contract("births", contract(tmp_path))
    for month in MONTHS:
        (tmp_path / f"{month}.csv").write_text("job\nnurse\ncook\n")
        admit(opened, "births", declared(opened), check_input(declared(opened), [str(tmp_path / f"{month}.csv")]))
    return opened


def declared(ledger: Books) -> Contract:
    return Contract.from_text(ledger.dataset("births").contract or "")


def reserve(ledger: Books, folder: Path, months: tuple[str, ...], cost: str) -> Charge:
    from dpdist.data.inputs import source_of
    from dpdist.data.source import fingerprint

    read = source_of(declared(ledger).data, paths=tuple(f"{folder}/{month}.csv" for month in months))
    return ledger.reserve(
        dataset="births",
        release=f"{'-'.join(months)} at {cost}",
        spec_hash="spec",
        input_fingerprint=fingerprint(read),
        event=cost,
        guarantee="dp",
        contract=declared(ledger).digest,
    )


def test_a_release_counts_for_the_records_of_its_months(ledger: Books, tmp_path: Path) -> None:
    """Months add up by themselves, a quarter for each of its months, and whichever came first."""
    for month in MONTHS:
        reserve(ledger, tmp_path, (month,), "0.6")
    reserve(ledger, tmp_path, MONTHS, "0.3")
    assert ledger.remaining("births").epsilon_spent == pytest.approx(0.9)
    with pytest.raises(BudgetExceeded, match="with 2 charges before it"):
        reserve(ledger, tmp_path, ("2026-02",), "0.2")
    with pytest.raises(BudgetExceeded):
        reserve(ledger, tmp_path, MONTHS, "0.2")
    reserve(ledger, tmp_path, ("2026-02",), "0.1")
    assert float(ledger.remaining("births", months=["2026-01"]).epsilon_remaining) == pytest.approx(0.1)
    assert ledger.remaining("births", months=["2026-04"]).epsilon_spent == 0
    assert ledger.remaining("births").epsilon_remaining < 1e-9
    ledger.verify("births")
    assert adjacency_of(ledger.dataset("births").contract) == "add/remove adjacency, for each month"


def test_a_corrected_month_is_the_same_month(ledger: Books, tmp_path: Path) -> None:
    """Its file, and with it its input, is another one, and its records are not."""
    reserve(ledger, tmp_path, ("2026-02",), "0.6")
    (tmp_path / "2026-02.csv").write_text("job\nnurse\ncook\ncook\n")
    with pytest.raises(Exception, match="has not found that this input keeps it"):
        reserve(ledger, tmp_path, ("2026-02",), "0.1")
    admit(ledger, "births", declared(ledger), check_input(declared(ledger), [str(tmp_path / "2026-02.csv")]))
    with pytest.raises(BudgetExceeded):
        reserve(ledger, tmp_path, ("2026-02",), "0.5")
    with pytest.raises(BudgetExceeded):
        reserve(ledger, tmp_path, MONTHS, "0.5")
    reserve(ledger, tmp_path, MONTHS, "0.4")


def test_without_the_promise_all_months_add_up(ledger: Books, tmp_path: Path) -> None:
    for month in MONTHS[:2]:
        reserve(ledger, tmp_path, (month,), "0.6")
    without = contract(tmp_path, data={"path": str(tmp_path / "2026-01.csv"), "later": [str(tmp_path / "*.csv")]})
    with pytest.raises(BudgetExceeded, match="more is spent"):
        ledger.amend("births", without, reason="persons come again")
    ledger.amend("births", without.model_copy(update={"epsilon": "2"}), reason="persons come again")
    assert ledger.remaining("births").epsilon_spent == pytest.approx(1.2)
    # a charge of an input that was admitted without a month counts for every month
    (tmp_path / "2026-04.csv").write_text("job\nnurse\ncook\n")
    admit(ledger, "births", declared(ledger), check_input(declared(ledger), [str(tmp_path / "2026-04.csv")]))
    reserve(ledger, tmp_path, ("2026-04",), "0.3")
    ledger.amend("births", contract(tmp_path, epsilon=2), reason="they do not")
    assert ledger.remaining("births").epsilon_spent == pytest.approx(0.9)


def test_names_of_files_have_one_month(tmp_path: Path) -> None:
    assert months_in(["a/2026-03.csv", "b/births-2026-04-v2.csv"]) == ("2026-03", "2026-04")
    for name in ("births.csv", "2026-13.csv", "2026-01-to-2026-03.csv", "12026-01.csv"):
        assert months_in([name, "2026-01.csv"]) == ()
        (tmp_path / name).write_text("job\nnurse\ncook\n")
        later = {"path": str(tmp_path / name), "every": "month"}
        with pytest.raises(SpecError, match="names have one month each"):
            check_input(contract(tmp_path, data=later))
