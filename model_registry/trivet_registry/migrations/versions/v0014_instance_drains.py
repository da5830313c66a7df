"""How long an instance may drain whose deployment was launched anew since."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column: what drains meanwhile has the site's time."""
    op.add_column("instances", sa.Column("drain_timeout_s", sa.Double(), nullable=True))


def downgrade() -> None:
    """Drop it."""
    with op.batch_alter_table("instances") as table:
        table.drop_column("drain_timeout_s")
