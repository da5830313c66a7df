"""Whether a failure is one that no time mends; until now its reason alone told so."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column: what had failed was tried again where its reason says so, and nowhere else."""
    op.add_column(
        "instances", sa.Column("needs_change", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.execute(
        sa.text(
            "UPDATE instances SET needs_change = TRUE WHERE state = 'failed' "
            "AND reason NOT LIKE '%it has served before and is tried again every%'"
        )
    )


def downgrade() -> None:
    """Drop it."""
    with op.batch_alter_table("instances") as table:
        table.drop_column("needs_change")
