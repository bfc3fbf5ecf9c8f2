"""Filters in place of composition at one delta: the filters of a data set, and what each charge takes from them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dpdist.ledger.refitting import give_filters

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; give the data sets that are there their filters, and price their charges."""
    op.add_column("dpdist_dataset", sa.Column("filters", sa.Text))
    op.add_column("dpdist_charge", sa.Column("costs", sa.Text))
    op.create_index("dpdist_charge_dataset", "dpdist_charge", ["dataset_id"])
    op.create_index("dpdist_charge_release", "dpdist_charge", ["dataset_id", "release"])
    stored = sa.text("key_uri IS NOT NULL")
    op.create_index("dpdist_charge_key", "dpdist_charge", ["dataset_id"], sqlite_where=stored, postgresql_where=stored)
    give_filters(op.get_bind())


def downgrade() -> None:
    """Refuse: dropping the costs would forget what was spent."""
    raise NotImplementedError("a ledger is never downgraded: it would forget what was spent")
