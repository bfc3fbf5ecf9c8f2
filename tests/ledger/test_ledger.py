"""The life of a charge, on both databases, and every refusal."""

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import sqlalchemy as sa

from dpdist.errors import (
    BudgetExceeded,
    DatasetExists,
    DatasetUnknown,
    GuaranteeRefused,
    KeyUnavailable,
    LedgerError,
    ReleaseConflict,
)
from dpdist.ledger import Books, Charge
from dpdist.ledger.keys import load_noise
from dpdist.ledger.tables import charge

SHA, OTHER_SHA = "a" * 64, "b" * 64


def reserve(ledger: Books, release: str = "r", epsilon: str = "1/4", **changes: Any) -> Charge:
    request = {"dataset": "acs", "spec_hash": "spec", "input_fingerprint": "input", "guarantee": "dp"}
    return ledger.reserve(**{**request, "release": release, "event": f'"{epsilon}"', **changes})


def resume(ledger: Books, release: str = "r", **changes: str) -> Charge:
    request = {"dataset": "acs", "release": release, "spec_hash": "spec", "input_fingerprint": "input"}
    return ledger.resume(**{**request, **changes})


def draw(ledger: Books, release: str = "r", **changes: Any) -> Charge:
    return ledger.mark_drawing(reserve(ledger, release, **changes))


def test_a_release_is_charged_once_and_committed_once(ledger: Books) -> None:
    attempt = reserve(ledger)
    assert (attempt.state, attempt.epsilon, attempt.event) == ("reserved", Fraction(1, 4), '"1/4"')
    attempt = ledger.mark_drawing(attempt)
    assert attempt.state == "drawing"
    attempt = ledger.commit(attempt, manifest_sha256=SHA)
    assert (attempt.state, attempt.manifest_sha256) == ("committed", SHA)
    assert ledger.find("acs", "r") == attempt

    budget = ledger.remaining("acs")
    assert (budget.epsilon_spent, budget.epsilon_remaining, budget.charges) == (Fraction(1, 4), Fraction(3, 4), 1)
    statement = ledger.verify("acs", receipts=[attempt.receipt])
    assert statement == ledger.show("acs")
    assert statement.attempts == (attempt,)
    ledger.verify("acs", receipts=[statement.head])


def test_repeating_a_transition_changes_nothing(ledger: Books) -> None:
    identity = str(uuid4())
    attempt = reserve(ledger, attempt=identity)
    assert attempt.id == identity
    assert reserve(ledger, attempt=identity) == attempt
    drawing = ledger.mark_drawing(attempt)
    assert ledger.mark_drawing(attempt) == drawing
    committed = ledger.commit(attempt, manifest_sha256=SHA)
    assert ledger.commit(attempt, manifest_sha256=SHA) == committed
    ledger.erase(attempt)
    given_back = ledger.void(reserve(ledger, "other"))
    assert ledger.void(given_back) == given_back
    assert len(ledger.verify("acs").attempts) == 2


def test_the_same_attempt_with_another_charge_is_refused(ledger: Books) -> None:
    attempt = reserve(ledger)
    with pytest.raises(ReleaseConflict, match="reserved with another data set, spec, input or charge"):
        reserve(ledger, attempt=attempt.id, epsilon="1/8")
    with pytest.raises(LedgerError, match="random UUID"):
        reserve(ledger, attempt="one")


def test_more_than_the_cap_is_refused_with_public_numbers(ledger: Books) -> None:
    reserve(ledger, "first", "2/3")
    with pytest.raises(BudgetExceeded) as refused:
        reserve(ledger, "second", "1/2")
    message = str(refused.value)
    for part in ("'acs'", "'second'", "epsilon 0.5", "delta 1e-8", "epsilon 1.16667", "cap is epsilon 1", "0.333333"):
        assert part in message
    assert ledger.find("acs", "second") is None
    reserve(ledger, "third", "1/3")
    assert ledger.remaining("acs").epsilon_remaining == 0
    with pytest.raises(BudgetExceeded):
        reserve(ledger, "fourth", "1e-30")


def test_a_rehearsal_refuses_what_a_charge_would_and_leaves_nothing(ledger: Books) -> None:
    draw(ledger, "open", epsilon="1/2")
    before = ledger.verify("acs")
    reserve_later = {"dataset": "acs", "spec_hash": "spec", "input_fingerprint": "input", "guarantee": "dp"}
    allowed: dict[str, Any] = {**reserve_later, "release": "r", "event": '"1/4"', "attempt": str(uuid4())}
    for changes, refused in (
        ({}, None),
        ({"release": "open", "new_attempt": True}, None),
        ({"release": "open"}, ReleaseConflict),
        ({"event": '"3/4"'}, BudgetExceeded),
        ({"event": None}, GuaranteeRefused),
        ({"dataset": "nobody"}, DatasetUnknown),
    ):
        if refused is None:
            ledger.rehearse(**{**allowed, **changes})
        else:
            with pytest.raises(refused):
                ledger.rehearse(**{**allowed, **changes})
        assert ledger.verify("acs") == before
    assert ledger.reserve(**allowed).id == allowed["attempt"]
    ledger.rehearse(**allowed)  # repeated, it is the same attempt


def test_what_a_charge_would_leave_is_told_without_charging(ledger: Books) -> None:
    reserve(ledger, epsilon="1/4")
    after = ledger.remaining("acs", event='"1/2"')
    assert (after.epsilon_spent, after.epsilon_remaining, after.charges) == (Fraction(3, 4), Fraction(1, 4), 2)
    assert ledger.remaining("acs", event='"7/8"').epsilon_remaining == 0
    assert ledger.remaining("acs").epsilon_spent == Fraction(1, 4)
    ledger.close()
    ledger.verify("acs")


def test_a_void_charge_is_given_back(ledger: Books) -> None:
    attempt = reserve(ledger, epsilon="1")
    assert ledger.void(attempt).state == "void"
    assert ledger.remaining("acs").epsilon_spent == 0
    again = reserve(ledger, epsilon="1", spec_hash="another")
    assert again.id != attempt.id
    with pytest.raises(ReleaseConflict, match="stale"):
        ledger.mark_drawing(attempt)


def test_resume_gives_the_open_attempt_at_no_charge(ledger: Books, open_ledger: Callable[[], Books]) -> None:
    attempt = reserve(ledger)
    assert resume(open_ledger()) == attempt
    drawing = ledger.mark_drawing(attempt)
    assert resume(open_ledger()) == drawing
    assert ledger.remaining("acs").charges == 1


STATES: dict[str, Callable[[Books], Charge]] = {
    "reserved": reserve,
    "drawing": draw,
    "committed": lambda ledger: ledger.commit(draw(ledger), manifest_sha256=SHA),
}


@pytest.mark.parametrize(
    ("state", "call", "error", "message"),
    [
        ("reserved", lambda x, a: x.commit(a, manifest_sha256=SHA), LedgerError, "mark_drawing comes first"),
        ("drawing", lambda x, a: x.commit(a, manifest_sha256="abc"), LedgerError, "64 lower-case hexadecimal digits"),
        ("committed", lambda x, a: x.commit(a, manifest_sha256=OTHER_SHA), ReleaseConflict, "another manifest"),
        ("drawing", lambda x, a: x.void(a), LedgerError, "noise was drawn, so its charge stays"),
        ("committed", lambda x, a: x.void(a), LedgerError, "is committed: noise was drawn"),
        ("drawing", lambda x, a: resume(x, "other"), LedgerError, "has no open attempt: run it without resuming"),
        ("drawing", lambda x, a: resume(x, spec_hash="another"), ReleaseConflict, "begun with another spec"),
        ("drawing", lambda x, a: resume(x, input_fingerprint="another"), ReleaseConflict, "the input changed since"),
        ("committed", lambda x, a: resume(x), ReleaseConflict, "committed already"),
    ],
)
def test_what_a_state_refuses(ledger: Books, state: str, call: Any, error: type[Exception], message: str) -> None:
    attempt = STATES[state](ledger)
    with pytest.raises(error, match=message):
        call(ledger, attempt)
    assert ledger.attempt(attempt) == attempt
    assert ledger.remaining("acs").epsilon_spent == Fraction(1, 4)


def test_a_taken_release_name_is_refused(ledger: Books) -> None:
    attempt = draw(ledger)
    with pytest.raises(
        ReleaseConflict, match=r"open attempt .*: wait for its run, or resume it \(--resume.*--new-attempt"
    ):
        reserve(ledger)
    with pytest.raises(ReleaseConflict, match="begun with another spec"):
        reserve(ledger, spec_hash="another")
    with pytest.raises(ReleaseConflict, match="begun with another spec"):
        reserve(ledger, spec_hash="another", new_attempt=True)
    ledger.commit(attempt, manifest_sha256=SHA)
    for new_attempt in (False, True):
        with pytest.raises(ReleaseConflict, match="committed already"):
            reserve(ledger, new_attempt=new_attempt)
    assert ledger.remaining("acs").charges == 1


def test_a_new_attempt_has_a_new_key_and_a_new_charge(ledger: Books, tmp_path: Path) -> None:
    old = draw(ledger)
    old_ref = ledger.share_key(old, f"{tmp_path}/old.json")
    old_words = load_noise(old_ref).words("x", 4)
    new = draw(ledger, input_fingerprint="changed", new_attempt=True)
    assert ledger.attempt(old).state == "abandoned"
    assert ledger.remaining("acs").epsilon_spent == Fraction(1, 2)
    assert not np.array_equal(ledger.noise(new).words("x", 4), old_words)
    with pytest.raises(KeyUnavailable):
        load_noise(old_ref)
    for late in (
        lambda: ledger.mark_drawing(old),
        lambda: ledger.commit(old, manifest_sha256=SHA),
        lambda: ledger.noise(old),
        lambda: ledger.share_key(old, f"{tmp_path}/late.json"),
    ):
        with pytest.raises(ReleaseConflict, match="is abandoned: this run is stale"):
            late()
    assert not (tmp_path / "late.json").exists()
    ledger.commit(new, manifest_sha256=SHA)
    assert [attempt.state for attempt in ledger.verify("acs").attempts] == ["abandoned", "committed"]


@pytest.mark.parametrize(("drawn", "state", "spent"), [(False, "void", 0), (True, "abandoned", Fraction(1, 4))])
def test_an_attempt_given_up_ends_without_its_key(
    ledger: Books, tmp_path: Path, drawn: bool, state: str, spent: Fraction
) -> None:
    attempt = draw(ledger) if drawn else reserve(ledger)
    ledger.share_key(attempt, f"{tmp_path}/key.json")
    for _ in range(2):
        assert ledger.give_up(attempt).state == state
    assert not (tmp_path / "key.json").exists()
    assert ledger.remaining("acs").epsilon_spent == spent
    with pytest.raises(ReleaseConflict, match="this run is stale"):
        ledger.mark_drawing(attempt)
    assert ledger.find("acs", attempt.release) is None
    committed = draw(ledger)
    ledger.commit(committed, manifest_sha256=SHA)
    with pytest.raises(ReleaseConflict, match="is committed"):
        ledger.give_up(committed)
    assert ledger.verify("acs").budget.is_kept


def test_a_refused_new_attempt_leaves_the_old_one_open(ledger: Books) -> None:
    old = draw(ledger, epsilon="2/3")
    with pytest.raises(BudgetExceeded):
        reserve(ledger, epsilon="2/3", new_attempt=True)
    assert resume(ledger) == old


def test_the_database_itself_admits_one_live_attempt_per_release(ledger: Books) -> None:
    attempt = reserve(ledger)
    with ledger.database.engine.begin() as connection:
        row = dict(connection.execute(sa.select(charge)).mappings().one())
    row |= {"id": row["id"] + 1, "attempt": str(uuid4()), "state": "committed"}
    with pytest.raises(sa.exc.IntegrityError), ledger.database.engine.begin() as connection:
        connection.execute(sa.insert(charge).values(row))
    with pytest.raises(sa.exc.IntegrityError), ledger.database.engine.begin() as connection:
        connection.execute(sa.update(charge).values(state="spent"))
    assert ledger.verify("acs").attempts == (attempt,)


def test_unknown_and_existing(ledger: Books) -> None:
    with pytest.raises(DatasetExists, match="its caps are final"):
        ledger.create_dataset("acs", epsilon=2, delta=0)
    for missing in (ledger.show, ledger.remaining, ledger.verify, lambda name: ledger.find(name, "r")):
        with pytest.raises(DatasetUnknown, match="dpdist ledger create adult"):
            missing("adult")
    with pytest.raises(DatasetUnknown):
        reserve(ledger, dataset="adult")
    with pytest.raises(DatasetUnknown):
        resume(ledger, dataset="adult")
    for missing in (ledger.attempt, ledger.mark_drawing, ledger.void, ledger.noise, ledger.erase):
        with pytest.raises(LedgerError, match="no attempt"):
            missing(str(uuid4()))


def test_the_policy_decides_which_guarantees_are_allowed(ledger: Books) -> None:
    ledger.create_dataset("strict", epsilon=1, delta=0)
    with pytest.raises(GuaranteeRefused, match="allows the guarantees dp, not 'pml'"):
        reserve(ledger, dataset="strict", guarantee="pml")
    for kind in ("dp", "pd-per-record"):
        with pytest.raises(GuaranteeRefused, match="needs a privacy event"):
            reserve(ledger, guarantee=kind, event=None)
    free = reserve(ledger, guarantee="lid", event=None)
    assert (free.event, free.epsilon) == (None, 0)
    assert ledger.remaining("acs").charges == 0
    assert ledger.verify("acs").attempts == (free,)


def test_budgets_are_per_data_set(ledger: Books) -> None:
    ledger.create_dataset("adult", epsilon="1/2", delta=0, guarantees=["dp"])
    reserve(ledger, epsilon="1")
    adult = reserve(ledger, dataset="adult", epsilon="0.5")
    assert adult.dataset == "adult"
    assert list(ledger.datasets()) == ["acs", "adult"]
    assert ledger.verify("adult").attempts == (adult,)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": 0}, "1e-6 <= epsilon"),
        ({"epsilon": -1}, "1e-6 <= epsilon"),
        ({"epsilon": "1e7"}, "epsilon <= 1,000,000"),
        ({"epsilon": "1e999999999"}, "epsilon must be a number"),
        ({"delta": "1e-999999999"}, "delta must be a number"),
        ({"guarantees": ("pml",), "pml": "1e7"}, "1e-6 to 1,000,000 nats"),
        ({"delta": 1}, "delta < 1"),
        ({"delta": -0.1}, "0 <= delta"),
        ({"epsilon": float("nan")}, "epsilon must be a number"),
        ({"epsilon": float("inf")}, "epsilon must be a number"),
        ({"epsilon": "much"}, "epsilon must be a number"),
        ({"delta": "1/0"}, "delta must be a number"),
        ({"guarantees": ()}, "guarantees must be one or more of dp, dp-declared, pd-per-record, pml, lid"),
        ({"guarantees": ("dp", "dq")}, "guarantees must be one or more of"),
        ({"name": ""}, "the data set's name must be 1 to 200 printable"),
        ({"name": "a\nb"}, "the data set's name must be"),
        ({"name": " a"}, "the data set's name must be"),
    ],
)
def test_a_data_set_that_makes_no_sense_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    ledger = Books.open(f"sqlite:///{tmp_path}/ledger.db")
    terms = {"name": "acs", "epsilon": 1, "delta": 0, "guarantees": ("dp",), **settings}
    with pytest.raises(LedgerError, match=re.escape(message)):
        ledger.create_dataset(terms.pop("name"), **terms)
    assert ledger.datasets() == ()


def test_a_charge_that_makes_no_sense_is_refused(ledger: Books) -> None:
    for event in ("{", object(), float("nan")):
        with pytest.raises(LedgerError, match="must be a privacy event or its JSON"):
            reserve(ledger, event=event)
    with pytest.raises(LedgerError, match="the release's name must be"):
        reserve(ledger, "")
    with pytest.raises(LedgerError, match="the spec's hash must be"):
        reserve(ledger, spec_hash="")
    with pytest.raises(LedgerError, match="the input's fingerprint must be"):
        reserve(ledger, input_fingerprint="x" * 201)


def test_keys_follow_the_state(ledger: Books, tmp_path: Path) -> None:
    attempt = reserve(ledger)
    uri = f"{tmp_path}/attempt/key.json"
    early_ref = ledger.share_key(attempt, uri)  # for the coins of the split
    with pytest.raises(LedgerError, match="only after mark_drawing"):
        ledger.noise(attempt)
    ledger.mark_drawing(attempt)
    with pytest.raises(LedgerError, match="commit or void it before its key is erased"):
        ledger.erase(attempt)
    words = ledger.noise(attempt).words("x", 3)
    ref = ledger.share_key(attempt, uri)
    assert ref == early_ref == ledger.share_key(attempt, uri)
    np.testing.assert_array_equal(load_noise(ref).words("x", 3), words)

    moved = ledger.share_key(attempt, f"{tmp_path}/moved.json")
    assert not (tmp_path / "attempt" / "key.json").exists()
    np.testing.assert_array_equal(load_noise(moved).words("x", 3), words)

    ledger.commit(attempt, manifest_sha256=SHA)
    assert not (tmp_path / "moved.json").exists()
    with pytest.raises(KeyUnavailable, match="it is erased when the attempt is committed"):
        load_noise(moved)
    with pytest.raises(ReleaseConflict, match="stale"):
        ledger.noise(attempt)
    with ledger.database.engine.begin() as connection:
        assert connection.execute(sa.select(charge.c.wrapped_key, charge.c.key_uri)).all() == [(None, None)]


def test_a_commit_holds_when_the_key_file_cannot_be_deleted(ledger: Books, tmp_path: Path) -> None:
    attempt = draw(ledger)
    ledger.share_key(attempt, f"{tmp_path}/key.json")
    (tmp_path / "key.json").unlink()
    (tmp_path / "key.json").mkdir()
    with pytest.raises(KeyUnavailable, match="repeat the commit"):
        ledger.commit(attempt, manifest_sha256=SHA)
    assert ledger.attempt(attempt).state == "committed"
    (tmp_path / "key.json").rmdir()
    (tmp_path / "key.json").write_bytes(b"{")  # as far as it was written
    ledger.commit(attempt, manifest_sha256=SHA)
    assert not (tmp_path / "key.json").exists()


@pytest.mark.parametrize("there", [True, False])
def test_what_an_interrupted_run_left_is_swept_by_the_next(ledger: Books, tmp_path: Path, there: bool) -> None:
    attempt = draw(ledger)
    ledger.share_key(attempt, f"{tmp_path}/key.json")
    (tmp_path / "key.json").rename(tmp_path / "aside")
    if there:
        (tmp_path / "key.json").mkdir()
    new = draw(ledger, new_attempt=True)  # cannot delete the old key file, or does not see it, and goes on
    if there:
        (tmp_path / "key.json").rmdir()
    (tmp_path / "aside").rename(tmp_path / "key.json")
    reserve(ledger, "next")
    assert not (tmp_path / "key.json").exists()
    assert ledger.attempt(new).state == "drawing"


def test_records_show_no_key(ledger: Books) -> None:
    attempt = draw(ledger)
    with ledger.database.engine.begin() as connection:
        wrapped = connection.execute(sa.select(charge.c.wrapped_key)).scalar_one()
    shown = repr((ledger, attempt, ledger.show("acs"), ledger.database.engine))
    assert wrapped.hex() not in shown
    assert "wrapped" not in shown
    assert replace(attempt) == attempt
