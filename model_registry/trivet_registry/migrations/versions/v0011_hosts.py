"""The host of an engine that is not this one, and where it is reached there."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns: what runs is on this host, where its run directory says how it is reached."""
    op.add_column("instances", sa.Column("host", sa.String(length=128), nullable=True))
    op.add_column("instances", sa.Column("endpoints", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    """Drop them."""
    with op.batch_alter_table("instances") as table:
        table.drop_column("endpoints")
        table.drop_column("host")
