"""What an engine's log ends with is in the reason of its failure, and in its log."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Drop the column, which nothing reads."""
    with op.batch_alter_table("instances") as table:
        table.drop_column("log_tail")


def downgrade() -> None:
    """Add it, empty."""
    op.add_column("instances", sa.Column("log_tail", sa.Text(), nullable=True))
