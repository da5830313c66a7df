"""How busy a device is, where its backend can tell."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

COLUMNS: tuple[tuple[str, sa.types.TypeEngine[Any]], ...] = (
    ("used_bytes", sa.BigInteger()),
    ("utilisation_percent", sa.Integer()),
    ("temperature_c", sa.Integer()),
    ("power_w", sa.Double()),
)


def upgrade() -> None:
    """Add the columns; the next probe fills them."""
    for name, kind in COLUMNS:
        op.add_column("devices", sa.Column(name, kind, nullable=True))


def downgrade() -> None:
    """Drop them."""
    with op.batch_alter_table("devices") as table:
        for name, _ in COLUMNS:
            table.drop_column(name)
