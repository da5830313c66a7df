"""Rolling updates, priority, fallback and sleep of deployments; ranks and deadlines of instances."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

COLUMNS = (
    ("deployments", "first_generation"),
    ("deployments", "priority"),
    ("deployments", "fallback"),
    ("deployments", "is_asleep"),
    ("instances", "processes"),
    ("instances", "entered_s"),
    ("devices", "users"),
)


def upgrade() -> None:
    """Add the columns. What runs keeps running: its generation is the first that may serve."""
    op.add_column(
        "deployments",
        sa.Column("first_generation", sa.Integer(), nullable=False, server_default=sa.text("1")),
    )
    op.execute("UPDATE deployments SET first_generation = generation")
    op.add_column(
        "deployments", sa.Column("priority", sa.Integer(), nullable=False, server_default=sa.text("0"))
    )
    op.add_column("deployments", sa.Column("fallback", sa.String(length=128), nullable=True))
    op.add_column(
        "deployments", sa.Column("is_asleep", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.add_column("instances", sa.Column("processes", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("instances", sa.Column("entered_s", sa.Double(), nullable=True))
    op.add_column("devices", sa.Column("users", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    """Drop them in place: rebuilding `deployments`, as a batch does, would delete its instances."""
    for table, column in reversed(COLUMNS):
        op.drop_column(table, column)
