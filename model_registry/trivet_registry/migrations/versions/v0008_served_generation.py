"""What a deployment served with last."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

JSON = sa.JSON(none_as_null=True)
RULES = ("generation", "version_id", "backend", "device", "settings")
DEPLOYMENTS = sa.table(
    "deployments",
    sa.column("id", sa.Integer),
    sa.column("generation", sa.Integer),
    sa.column("version_id", sa.Integer),
    sa.column("backend", sa.String),
    sa.column("device", sa.String),
    sa.column("settings", JSON),
    sa.column("served", JSON),
)
INSTANCES = sa.table(
    "instances",
    sa.column("deployment_id", sa.Integer),
    sa.column("generation", sa.Integer),
    sa.column("state", sa.String),
    sa.column("ready_at", sa.DateTime(timezone=True)),
)


def upgrade() -> None:
    """Add the column, and fill it where an instance of the newest generation has been ready."""
    op.add_column("deployments", sa.Column("served", JSON, nullable=True))
    connection = op.get_bind()
    has_served = sa.exists().where(
        INSTANCES.c.deployment_id == DEPLOYMENTS.c.id,
        INSTANCES.c.generation == DEPLOYMENTS.c.generation,
        sa.or_(INSTANCES.c.ready_at.is_not(None), INSTANCES.c.state == "ready"),
    )
    for row in connection.execute(sa.select(DEPLOYMENTS).where(has_served)).mappings().all():
        served = {**{name: row[name] for name in RULES}, "settings": row["settings"] or {}}
        change = sa.update(DEPLOYMENTS).where(DEPLOYMENTS.c.id == row["id"]).values(served=served)
        connection.execute(change)


def downgrade() -> None:
    """Drop it."""
    op.drop_column("deployments", "served")
