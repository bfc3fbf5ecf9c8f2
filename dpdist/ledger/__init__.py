"""The ledger: the privacy budget of a data set across releases, on SQLite or PostgreSQL.

A release is charged before its first noise is drawn, and published at most once::

    ledger = Books.open("sqlite:////var/lib/dpdist/ledger.sqlite")
    ledger.create_dataset("acs", epsilon=4, delta="1e-8")
    charge = ledger.reserve(dataset="acs", release="acs-2013", spec_hash=…, input_fingerprint=…,
                            event=plan.event, guarantee="dp")
    charge = ledger.mark_drawing(charge)
    ref = ledger.share_key(charge, "s3://…/key.json")      # workers: dpdist.ledger.keys.load_noise(ref)
    …
    ledger.commit(charge, manifest_sha256=…)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpdist.ledger.ledger import Books
    from dpdist.ledger.records import Charge

__all__ = ["Books", "Charge"]


def __getattr__(name: str) -> Any:
    """Import a name when it is used: workers read keys from this package and need no database."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{'ledger' if name == 'Books' else 'records'}"), name)
