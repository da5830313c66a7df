"""Numbers of versions that were given, and of bundles that were taken in: both outlive the versions."""

import re

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables, and fill them from the versions that are there.

    A bundle's content is told by the folder of the store in which its files lie. Its own name of the model is
    not known of those: the name here is the best guess.
    """
    op.create_table(
        "version_numbers",
        sa.Column("model", sa.String(length=128), nullable=False),
        sa.Column("newest", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("model", name=op.f("pk_version_numbers")),
    )
    op.create_table(
        "bundle_numbers",
        sa.Column("signer", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=128), nullable=False),
        sa.Column("newest", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("signer", "model", name=op.f("pk_bundle_numbers")),
    )
    op.execute(
        "INSERT INTO version_numbers (model, newest) SELECT models.name, max(versions.version) "
        "FROM versions JOIN models ON models.id = versions.model_id GROUP BY models.name"
    )
    op.execute(
        "INSERT INTO bundle_numbers (signer, model, newest) "
        "SELECT versions.signed_by, models.name, max(versions.signed_version) "
        "FROM versions JOIN models ON models.id = versions.model_id "
        "WHERE versions.signed_by IS NOT NULL AND versions.signed_version IS NOT NULL "
        "GROUP BY versions.signed_by, models.name"
    )
    _fill_digests()


def _fill_digests() -> None:
    connection = op.get_bind()
    rows = connection.exec_driver_sql(
        "SELECT bundle_numbers.signer, bundle_numbers.model, versions.path FROM bundle_numbers "
        "JOIN models ON models.name = bundle_numbers.model JOIN versions ON versions.model_id = models.id "
        "AND versions.signed_by = bundle_numbers.signer AND versions.signed_version = bundle_numbers.newest"
    ).all()
    for signer, model, path in rows:
        if found := re.search(r"/trees/([0-9a-f]{64})(?:/|$)", path):
            connection.execute(
                sa.text(
                    "UPDATE bundle_numbers SET digest = :digest WHERE signer = :signer AND model = :model"
                ),
                {"digest": found[1], "signer": signer, "model": model},
            )


def downgrade() -> None:
    """Drop them."""
    op.drop_table("bundle_numbers")
    op.drop_table("version_numbers")
