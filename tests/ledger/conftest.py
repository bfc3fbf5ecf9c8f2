"""Ledgers to test on."""

from collections.abc import Callable

import pytest
from charges import add_up

from dpdist.ledger import Books


@pytest.fixture
def open_ledger(ledger_url: str) -> Callable[[], Books]:
    """Open the ledger of the test; a charge is the text of a number."""
    return lambda: Books.open(ledger_url, price=add_up)


@pytest.fixture
def ledger(open_ledger: Callable[[], Books]) -> Books:
    """A ledger with the data set ``acs``: epsilon 1, delta 1e-8, every kind of guarantee."""
    opened = open_ledger()
    opened.create_dataset("acs", epsilon=1, delta="1e-8", guarantees=("dp", "pd-per-record", "pml", "lid"))
    return opened
