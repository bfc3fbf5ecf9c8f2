"""Signing identities of data sets; those that are there have none until `dpdist ledger identity --new` makes one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "dpdist_identity",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("dataset_id", sa.Integer, sa.ForeignKey("dpdist_dataset.id"), nullable=False),
        sa.Column("public_key", sa.String(64), nullable=False),
        sa.Column("wrapped_key", sa.LargeBinary, nullable=False),
        sa.Column("created", sa.String(40), nullable=False),
    )


def downgrade() -> None:
    """Refuse: a ledger is never downgraded."""
    raise NotImplementedError("a ledger is never downgraded: it would forget what was spent")
