"""What an engine warns of though it works."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; an engine's next start fills it."""
    op.add_column("instances", sa.Column("notices", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    """Drop it."""
    with op.batch_alter_table("instances") as table:
        table.drop_column("notices")
