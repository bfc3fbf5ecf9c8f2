"""The tables of the ledger, as `dpdist.ledger.tables` declares them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create them."""
    op.create_table(
        "dpdist_dataset",
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
    op.create_table(
        "dpdist_charge",
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
    )
    live = sa.text("state IN ('reserved', 'drawing', 'committed')")
    op.create_index(
        "dpdist_charge_live",
        "dpdist_charge",
        ["dataset_id", "release"],
        unique=True,
        sqlite_where=live,
        postgresql_where=live,
    )
    stored = sa.text("key_uri IS NOT NULL")
    op.create_index("dpdist_charge_dataset", "dpdist_charge", ["dataset_id"])
    op.create_index("dpdist_charge_release", "dpdist_charge", ["dataset_id", "release"])
    op.create_index("dpdist_charge_key", "dpdist_charge", ["dataset_id"], sqlite_where=stored, postgresql_where=stored)
    op.create_table(
        "dpdist_input",
        sa.Column("dataset_id", sa.Integer, sa.ForeignKey("dpdist_dataset.id"), primary_key=True),
        sa.Column("fingerprint", sa.String(64), primary_key=True),
        sa.Column("contract", sa.String(64), primary_key=True),
        sa.Column("sequence", sa.Integer, nullable=False),
    )
    op.create_table(
        "dpdist_identity",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("dataset_id", sa.Integer, sa.ForeignKey("dpdist_dataset.id"), nullable=False),
        sa.Column("public_key", sa.String(64), nullable=False),
        sa.Column("wrapped_key", sa.LargeBinary, nullable=False),
        sa.Column("created", sa.String(40), nullable=False),
    )
    op.create_table(
        "dpdist_journal",
        sa.Column("dataset_id", sa.Integer, sa.ForeignKey("dpdist_dataset.id"), primary_key=True),
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
    )


def downgrade() -> None:
    """Refuse: dropping the ledger would forget what was spent."""
    raise NotImplementedError("a ledger is never downgraded: it would forget what was spent")
