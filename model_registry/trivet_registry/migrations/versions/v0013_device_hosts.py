"""The host of a device, which its name alone does not tell."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column: what is known is replaced at the next look."""
    op.add_column("devices", sa.Column("host", sa.String(length=128), server_default="", nullable=False))


def downgrade() -> None:
    """Drop it."""
    with op.batch_alter_table("devices") as table:
        table.drop_column("host")
