"""Models, versions, deployments, instances, devices, events."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    _make_observations()
    _make_models()
    _make_deployments()
    _make_instances()


def downgrade() -> None:
    """Drop them."""
    op.drop_index(op.f("ix_instances_state"), table_name="instances")
    op.drop_index(op.f("ix_instances_deployment_id"), table_name="instances")
    op.drop_table("instances")
    op.drop_index(op.f("ix_deployments_version_id"), table_name="deployments")
    op.drop_table("deployments")
    op.drop_index(op.f("ix_versions_fingerprint"), table_name="versions")
    op.drop_table("versions")
    op.drop_table("models")
    op.drop_index(op.f("ix_events_instance"), table_name="events")
    op.drop_index(op.f("ix_events_deployment"), table_name="events")
    op.drop_index(op.f("ix_events_at"), table_name="events")
    op.drop_table("events")
    op.drop_table("devices")


def _make_observations() -> None:
    op.create_table(
        "devices",
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("uid", sa.String(length=128), nullable=False),
        sa.Column("device_index", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("arch", sa.Text(), nullable=False),
        sa.Column("total_bytes", sa.BigInteger(), nullable=False),
        sa.Column("free_bytes", sa.BigInteger(), nullable=False),
        sa.Column("reserved_bytes", sa.BigInteger(), nullable=False),
        sa.Column("dtypes", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("versions", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("unusable_because", sa.Text(), nullable=True),
        sa.Column("as_of", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("kind", "uid", name=op.f("pk_devices")),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("deployment", sa.String(length=128), nullable=True),
        sa.Column("instance", sa.String(length=16), nullable=True),
        sa.Column("from_state", sa.String(length=16), nullable=True),
        sa.Column("to_state", sa.String(length=16), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_at"), "events", ["at"], unique=False)
    op.create_index(op.f("ix_events_deployment"), "events", ["deployment"], unique=False)
    op.create_index(op.f("ix_events_instance"), "events", ["instance"], unique=False)


def _make_models() -> None:
    op.create_table(
        "models",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_models")),
        sa.UniqueConstraint("name", name=op.f("uq_models_name")),
    )
    op.create_table(
        "versions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("format", sa.String(length=32), nullable=False),
        sa.Column("quantization", sa.String(length=32), nullable=True),
        sa.Column("architecture", sa.String(length=128), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("context_length", sa.Integer(), nullable=False),
        sa.Column("licence", sa.Text(), nullable=True),
        sa.Column("files", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["model_id"], ["models.id"], name=op.f("fk_versions_model_id_models"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_versions")),
        sa.UniqueConstraint("model_id", "version", name=op.f("uq_versions_model_id")),
    )
    op.create_index(op.f("ix_versions_fingerprint"), "versions", ["fingerprint"], unique=False)


def _make_deployments() -> None:
    op.create_table(
        "deployments",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("version_id", sa.Integer(), nullable=False),
        sa.Column("backend", sa.String(length=64), nullable=False),
        sa.Column("device", sa.String(length=128), nullable=True),
        sa.Column("replicas", sa.Integer(), nullable=False),
        sa.Column("settings", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("desired", sa.String(length=16), nullable=False),
        sa.Column("drain_timeout_s", sa.Double(), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["version_id"],
            ["versions.id"],
            name=op.f("fk_deployments_version_id_versions"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deployments")),
        sa.UniqueConstraint("name", name=op.f("uq_deployments_name")),
    )
    op.create_index(op.f("ix_deployments_version_id"), "deployments", ["version_id"], unique=False)


def _make_instances() -> None:
    op.create_table(
        "instances",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("deployment_id", sa.Integer(), nullable=False),
        sa.Column("version_id", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("backend", sa.String(length=64), nullable=True),
        sa.Column("device_uids", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("plan", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("boot_failures", sa.Integer(), nullable=False),
        sa.Column("first_failure", sa.Text(), nullable=True),
        sa.Column("log_tail", sa.Text(), nullable=True),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("process_start_time", sa.Double(), nullable=True),
        sa.Column("lease", sa.String(length=64), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("run_dir", sa.Text(), nullable=True),
        sa.Column("log_file", sa.Text(), nullable=True),
        sa.Column("progress_done", sa.BigInteger(), nullable=False),
        sa.Column("progress_total", sa.BigInteger(), nullable=False),
        sa.Column("load", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("memory", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state_since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ready_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("as_of", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["deployment_id"],
            ["deployments.id"],
            name=op.f("fk_instances_deployment_id_deployments"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["version_id"], ["versions.id"], name=op.f("fk_instances_version_id_versions"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_instances")),
    )
    op.create_index(op.f("ix_instances_deployment_id"), "instances", ["deployment_id"], unique=False)
    op.create_index(op.f("ix_instances_state"), "instances", ["state"], unique=False)
