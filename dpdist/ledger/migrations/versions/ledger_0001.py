"""The tables of the ledger, as they are declared; whoever alters one first writes them down here as they were."""

from __future__ import annotations

from alembic import op

from dpdist.ledger.tables import metadata

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create them."""
    metadata.create_all(op.get_bind())


def downgrade() -> None:
    """Refuse: dropping the ledger would forget what was spent."""
    raise NotImplementedError("a ledger is never downgraded: it would forget what was spent")
