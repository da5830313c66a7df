"""Engines that were given up though nobody knows that they have ended."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "fences",
        sa.Column("lease", sa.String(length=64), nullable=False),
        sa.Column("host", sa.String(length=128), nullable=False),
        sa.Column("instance_id", sa.String(length=16), nullable=False),
        sa.Column("deployment", sa.String(length=128), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("engine", sa.JSON(none_as_null=True), nullable=True),
        sa.PrimaryKeyConstraint("lease", name=op.f("pk_fences")),
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_table("fences")
