"""Aliases of versions with their history; what is in a version's files; deployments that follow an alias."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

VERSION_COLUMNS = (
    "digests",
    "digest",
    "spec",
    "abilities",
    "chat_template",
    "is_stored",
    "signed_by",
    "signed_version",
)


def upgrade() -> None:
    """Make the tables. Versions of before lie where they were registered; `models verify` reads them."""
    op.create_table(
        "aliases",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("version_id", sa.Integer(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["model_id"], ["models.id"], name=op.f("fk_aliases_model_id_models"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["version_id"], ["versions.id"], name=op.f("fk_aliases_version_id_versions"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_aliases")),
        sa.UniqueConstraint("model_id", "name", name=op.f("uq_aliases_model_id")),
    )
    op.create_index(op.f("ix_aliases_version_id"), "aliases", ["version_id"], unique=False)
    op.create_table(
        "alias_moves",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("alias", sa.String(length=128), nullable=False),
        sa.Column("from_version", sa.Integer(), nullable=True),
        sa.Column("to_version", sa.Integer(), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["model_id"], ["models.id"], name=op.f("fk_alias_moves_model_id_models"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alias_moves")),
    )
    op.create_index(op.f("ix_alias_moves_model_id"), "alias_moves", ["model_id"], unique=False)
    for column in (
        sa.Column("digests", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("digest", sa.String(length=64), nullable=True),
        sa.Column("spec", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("abilities", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("chat_template", sa.Text(), nullable=True),
        sa.Column("is_stored", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("signed_by", sa.String(length=64), nullable=True),
        sa.Column("signed_version", sa.Integer(), nullable=True),
    ):
        op.add_column("versions", column)
    op.create_index(op.f("ix_versions_digest"), "versions", ["digest"], unique=False)
    op.add_column("deployments", sa.Column("alias", sa.String(length=128), nullable=True))


def downgrade() -> None:
    """Drop them in place: rebuilding a table, as a batch does, would delete what refers to it."""
    op.drop_column("deployments", "alias")
    op.drop_index(op.f("ix_versions_digest"), table_name="versions")
    for name in reversed(VERSION_COLUMNS):
        op.drop_column("versions", name)
    op.drop_index(op.f("ix_alias_moves_model_id"), table_name="alias_moves")
    op.drop_table("alias_moves")
    op.drop_index(op.f("ix_aliases_version_id"), table_name="aliases")
    op.drop_table("aliases")
