"""The ledger's tables. Numbers of a budget are exact rationals in text ("4", "1/100000000").

- ``dataset``: a data set, its caps, filters and policy, and the head of its journal. Its row is the lock of the data
  set.
- ``charge``: one row per attempt. A partial unique index admits one *live* attempt per release name, so at most
  one commit.
- ``input``: the inputs of a data set that keep its contract.
- ``identity``: the key pairs with which the releases of a data set are signed, the private ones wrapped.
- ``version``: the `REVISION` of these tables.
- ``journal``: what happened to the data set, append-only and chained by SHA-256.

The names carry a prefix: the ledger may share a database with other programs. A change here needs a new `REVISION`.
"""

from __future__ import annotations

from threading import Lock
from typing import Final

import sqlalchemy as sa

REVISION: Final = "0001"

RESERVED: Final = "reserved"
DRAWING: Final = "drawing"
COMMITTED: Final = "committed"
ABANDONED: Final = "abandoned"
VOID: Final = "void"
STATES: Final = (RESERVED, DRAWING, COMMITTED, ABANDONED, VOID)
OPEN: Final = (RESERVED, DRAWING)
LIVE: Final = (RESERVED, DRAWING, COMMITTED)
SPENT: Final = (RESERVED, DRAWING, COMMITTED, ABANDONED)

metadata = sa.MetaData()

version = sa.Table(
    "dpdist_ledger_version", metadata, sa.Column("version_num", sa.String(32), primary_key=True, nullable=False)
)

dataset = sa.Table(
    "dpdist_dataset",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.String(200), nullable=False, unique=True),
    sa.Column("epsilon_cap", sa.Text, nullable=False),
    sa.Column("delta_cap", sa.Text, nullable=False),
    sa.Column("guarantees", sa.Text, nullable=False),
    sa.Column("created", sa.String(40), nullable=False),
    sa.Column("length", sa.Integer, nullable=False),
    sa.Column("head", sa.String(64), nullable=False),
    sa.Column("pml_cap", sa.Text),
    sa.Column("filters", sa.Text, nullable=False),
    sa.Column("contract", sa.Text),
)

_LIVE_SQL = sa.text("state IN ('reserved', 'drawing', 'committed')")
_KEY_SQL = sa.text("key_uri IS NOT NULL")

charge = sa.Table(
    "dpdist_charge",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("dataset_id", sa.Integer, sa.ForeignKey("dpdist_dataset.id"), nullable=False),
    sa.Column("attempt", sa.String(36), nullable=False, unique=True),
    sa.Column("release", sa.String(200), nullable=False),
    sa.Column("guarantee", sa.String(40), nullable=False),
    sa.Column("event", sa.Text, nullable=False),
    sa.Column("epsilon", sa.Text, nullable=False),
    sa.Column("spec_hash", sa.Text, nullable=False),
    sa.Column("input_fingerprint", sa.Text, nullable=False),
    sa.Column("state", sa.String(10), nullable=False),
    sa.Column("manifest_sha256", sa.String(64)),
    sa.Column("receipt", sa.String(64), nullable=False),
    sa.Column("created", sa.String(40), nullable=False),
    sa.Column("updated", sa.String(40), nullable=False),
    sa.Column("wrapped_key", sa.LargeBinary),
    sa.Column("key_uri", sa.Text),
    sa.Column("costs", sa.Text),
    sa.CheckConstraint(
        "state IN ('reserved', 'drawing', 'committed', 'abandoned', 'void')", name="dpdist_charge_state"
    ),
    sa.Index("dpdist_charge_dataset", "dataset_id"),
    sa.Index("dpdist_charge_release", "dataset_id", "release"),
)

admitted_input = sa.Table(
    "dpdist_input",
    metadata,
    sa.Column("dataset_id", sa.Integer, sa.ForeignKey("dpdist_dataset.id"), primary_key=True),
    sa.Column("fingerprint", sa.String(64), primary_key=True),
    sa.Column("contract", sa.String(64), primary_key=True),
)

identity = sa.Table(
    "dpdist_identity",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("dataset_id", sa.Integer, sa.ForeignKey("dpdist_dataset.id"), nullable=False),
    sa.Column("public_key", sa.String(64), nullable=False),
    sa.Column("wrapped_key", sa.LargeBinary, nullable=False),
    sa.Column("created", sa.String(40), nullable=False),
)

journal = sa.Table(
    "dpdist_journal",
    metadata,
    sa.Column("dataset_id", sa.Integer, sa.ForeignKey("dpdist_dataset.id"), primary_key=True),
    sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("record", sa.Text, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
)


_declaring = Lock()


def complete() -> sa.MetaData:
    """All tables, with their partial indexes: to declare these imports the dialect of PostgreSQL, which takes 50 ms."""
    of = charge.c
    with _declaring:  # threads may open ledgers at once
        declared = {index.name for index in charge.indexes}
        for name, columns, where, unique in (
            ("dpdist_charge_live", (of.dataset_id, of.release), _LIVE_SQL, True),
            ("dpdist_charge_key", (of.dataset_id,), _KEY_SQL, False),
        ):
            if name not in declared:
                sa.Index(name, *columns, unique=unique, sqlite_where=where, postgresql_where=where)
    return metadata
