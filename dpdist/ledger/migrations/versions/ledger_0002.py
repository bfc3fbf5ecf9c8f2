"""An account of pointwise maximal leakage beside the budget of a data set."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the cap on leakage; data sets that are there have no such account."""
    op.add_column("dpdist_dataset", sa.Column("pml_cap", sa.Text))


def downgrade() -> None:
    """Refuse: dropping the account would forget what was spent."""
    raise NotImplementedError("a ledger is never downgraded: it would forget what was spent")
