"""`ledger report` and `ledger metrics`: what operators see, on a ledger with every state."""

import re
import threading
import urllib.request
from pathlib import Path

import pytest
import sqlalchemy as sa
from commands import Command
from prometheus_client.parser import text_string_to_metric_families

from dpdist.cli.ledger_views import server
from dpdist.ledger import Books
from dpdist.ledger.statement import exposition
from dpdist.privacy.events import ApproximateDP, LaplaceLeakage

Metrics = dict[tuple[str, ...], float]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A ledger with a data set of each kind of trouble."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    ledger = Books.open(url)
    ledger.create_dataset("acs", epsilon=4, delta="1e-8", guarantees=("dp", "pml"), pml=2)
    ledger.create_dataset('<i>"odd"</i>', epsilon=1, delta="1e-6")
    given = {"dataset": "acs", "spec_hash": "s", "input_fingerprint": "i"}
    event = ApproximateDP(0.5, 1e-10)
    for release, until in (("released", 3), ("open", 2), ("back", 1), ("given-up", 2)):
        attempt = ledger.reserve(release=release, event=event, guarantee="dp", **given)
        if until > 1:
            ledger.mark_drawing(attempt)
        if until == 3:
            ledger.commit(attempt, manifest_sha256="0" * 64)
        elif release != "open":
            ledger.give_up(attempt)
    ledger.reserve(release="leaks", event=LaplaceLeakage(4.0, 0.05, failure=1e-15), guarantee="pml", **given)
    ledger.close()
    return url


def parsed(text: str) -> Metrics:
    """Samples as Prometheus reads them, by name and label values."""
    families = list(text_string_to_metric_families(text))
    assert all(family.documentation and family.type == "gauge" for family in families)
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


def test_metrics_are_the_ledger_in_numbers(dpdist: Command, url: str, tmp_path: Path) -> None:
    found = parsed(dpdist("ledger", "metrics", "--ledger", url).out)
    assert found["dpdist_ledger_up",] == 1
    assert found["dpdist_epsilon_cap", "acs"] == 4
    assert found["dpdist_epsilon_remaining", "acs"] == pytest.approx(2.5)
    assert found["dpdist_filter_left_ratio", "acs", "basic"] == pytest.approx(0.625)
    assert found["dpdist_epsilon_remaining", '<i>"odd"</i>'] == 1
    states = {state: found["dpdist_attempts", "acs", "dp", state] for state in ("committed", "drawing", "abandoned")}
    assert states == {"committed": 1, "drawing": 1, "abandoned": 1}
    assert found["dpdist_attempts", "acs", "dp", "void"] == 1
    assert found["dpdist_attempts", "acs", "pml", "reserved"] == 1
    assert 1.5 < found["dpdist_leakage_remaining_nats", "acs"] < 1.6
    assert (
        found["dpdist_oldest_open_attempt_timestamp_seconds", "acs"]
        <= found["dpdist_last_release_timestamp_seconds", "acs"] + 1
    )
    assert ("dpdist_last_release_timestamp_seconds", '<i>"odd"</i>') not in found
    path = tmp_path / "metrics" / "dpdist.prom"
    assert dpdist("ledger", "metrics", "--ledger", url, "--output", str(path)).out == ""
    assert parsed(path.read_text()) == found
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_ledger_that_cannot_be_read_or_is_damaged_is_told(dpdist: Command, url: str, tmp_path: Path) -> None:
    lost = dpdist("ledger", "metrics", "--ledger", f"sqlite:///{tmp_path}/none.db")
    assert parsed(lost.out) == {("dpdist_ledger_up",): 0}
    assert "no ledger at" in lost.err
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE dpdist_dataset SET epsilon_cap = '400' WHERE name = 'acs'"))
    engine.dispose()
    found = parsed(dpdist("ledger", "metrics", "--ledger", url).out)
    assert found["dpdist_dataset_damaged", "acs"] == 1
    assert ("dpdist_epsilon_cap", "acs") not in found
    page = tmp_path / "page.html"
    reported = dpdist("ledger", "report", str(page), "--ledger", url)
    assert reported.code == 5
    assert "caps or policy were altered" in page.read_text()


def test_labels_are_escaped() -> None:
    (sample,) = [line for line in exposition([{"dataset": 'a"\\\n', "error": "e"}]).splitlines() if "{" in line]
    assert sample == r'dpdist_dataset_damaged{dataset="a\"\\\n"} 1.0'


def test_they_are_served(url: str) -> None:
    with server("127.0.0.1:0", url) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{serving.server_address[1]}"
        with urllib.request.urlopen(f"{address}/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert parsed(answer.read().decode())["dpdist_ledger_up",] == 1
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(address)
        serving.shutdown()
        thread.join()


@pytest.mark.parametrize("wrong", ["9464", "127.0.0.1:port", "192.0.2.1:80", "127.0.0.1:99999"])
def test_an_address_that_is_none_is_refused(dpdist: Command, url: str, wrong: str) -> None:
    answer = dpdist("ledger", "metrics", "--ledger", url, "--listen", wrong)
    assert answer.code != 0
    assert "--listen: expected a free address" in answer.err


def test_the_page_says_what_was_spent_when_and_under_which_guarantee(dpdist: Command, url: str, tmp_path: Path) -> None:
    page = tmp_path / "ledger.html"
    assert dpdist("ledger", "report", str(page), "--ledger", url).out == f"{page}: 2 data sets\n"
    text = page.read_text()
    assert page.stat().st_mode & 0o777 == 0o600
    assert "<i>" not in text
    words = " ".join(re.sub("<[^>]*>", " ", text.split("<body>")[1]).split())
    assert "Epsilon 1.5 of 4 spent at delta 1e-8, add/remove adjacency" in words
    assert "2 attempts open: resume or give up" in words
    for release, state in (("released", "released"), ("given-up", "given up, spent"), ("back", "given back")):
        assert f"{release} {state} differential privacy 0.5" in words
    assert "leaks begun pointwise maximal leakage 0.468079 nats" in words
    assert re.search(r"By month month charges epsilon together \d{4}-\d\d 4 1\.5 ", words)
    only = dpdist("ledger", "report", str(page), "--ledger", url, "--dataset", "acs")
    assert only.out == f"{page}: 1 data set\n"


def test_the_page_says_that_a_budget_is_low(dpdist: Command, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    ledger = Books.open(url)
    for name, spent in (("rich", 0.5), ("poor", 0.9)):
        ledger.create_dataset(name, epsilon=1, delta="1e-6")
        given = {"dataset": name, "release": "r", "guarantee": "dp", "spec_hash": "s", "input_fingerprint": "i"}
        attempt = ledger.mark_drawing(ledger.reserve(event=ApproximateDP(spent, 1e-10), **given))
        ledger.commit(attempt, manifest_sha256="0" * 64)
    ledger.close()
    dpdist("ledger", "report", str(tmp_path / "page.html"), "--ledger", url)
    text = (tmp_path / "page.html").read_text()
    assert (
        re.findall(r"[\d.]+\s% of the budget left", text) == ["10\u00a0% of the budget left"] * 2
    )  # in short and in full
    assert 'class="banner plain"' in text
