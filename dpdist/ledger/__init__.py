"""The ledger: the privacy budget of a data set across releases, on SQLite or PostgreSQL.

A release is charged before its first noise is drawn, and published at most once::

    ledger = Ledger.open("sqlite:////var/lib/dpdist/ledger.sqlite")
    ledger.create_dataset("acs", epsilon=4, delta="1e-8")
    attempt = ledger.reserve(dataset="acs", release="acs-2013", spec_hash=…, input_fingerprint=…,
                             event=plan.event, guarantee="dp")
    attempt = ledger.mark_drawing(attempt)
    ref = ledger.share_key(attempt, "s3://…/key.json")      # workers: dpdist.ledger.keys.load_noise(ref)
    …
    ledger.commit(attempt, manifest_sha256=…)
"""

from __future__ import annotations

from dpdist.ledger.budget import Price, PriceOf, accountant_price
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.records import GUARANTEES, Attempt, Budget, Dataset, Statement

__all__ = ["GUARANTEES", "Attempt", "Budget", "Dataset", "Ledger", "Price", "PriceOf", "Statement", "accountant_price"]
