"""The contract of a data set, and the inputs that keep it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column and the table; data sets that are there have no contract."""
    op.add_column("dpdist_dataset", sa.Column("contract", sa.Text))
    op.create_table(
        "dpdist_input",
        sa.Column("dataset_id", sa.Integer, sa.ForeignKey("dpdist_dataset.id"), primary_key=True),
        sa.Column("fingerprint", sa.String(64), primary_key=True),
        sa.Column("contract", sa.String(64), primary_key=True),
        sa.Column("sequence", sa.Integer, nullable=False),
    )


def downgrade() -> None:
    """Refuse: dropping the contract would open the data set."""
    raise NotImplementedError("a ledger is never downgraded: it would forget what was spent")
