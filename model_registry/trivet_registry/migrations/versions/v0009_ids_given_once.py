"""Ids of users and keys are given once; from where names log in; a version of accounts."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

OF_USERS, OF_KEYS = ("user.create", "site.set_up"), ("key.create",)


def upgrade() -> None:
    """PostgreSQL gives no id twice; SQLite does, unless the table was made with AUTOINCREMENT."""
    op.add_column(
        "audit_head", sa.Column("accounts_version", sa.Integer(), nullable=False, server_default=sa.text("0"))
    )
    op.create_table(
        "login_places",
        sa.Column("place", sa.String(length=64), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("place", name="pk_login_places"),
    )
    if op.get_bind().dialect.name == "sqlite":
        _rebuild()


def downgrade() -> None:
    """Tables with AUTOINCREMENT stay: an earlier release works with them."""
    op.drop_table("login_places")
    op.drop_column("audit_head", "accounts_version")


def _rebuild() -> None:
    """Rows go by temporary tables: dropping `users` would delete what refers to it."""
    newest_user, newest_key = _newest("users", "user_id", OF_USERS), _newest("api_keys", "key_id", OF_KEYS)
    tables = ("users", "sessions", "api_keys")
    for table in tables:
        op.execute(f"CREATE TEMPORARY TABLE kept_{table} AS SELECT * FROM {table}")
    for table in reversed(tables):
        op.drop_table(table)
    _create_users()
    _create_sessions()
    _create_keys()
    for table in tables:
        op.execute(f"INSERT INTO {table} SELECT * FROM kept_{table}")
        op.execute(f"DROP TABLE kept_{table}")
    for table, newest in (("users", newest_user), ("api_keys", newest_key)):
        op.execute(f"DELETE FROM sqlite_sequence WHERE name = '{table}'")
        op.execute(f"INSERT INTO sqlite_sequence (name, seq) VALUES ('{table}', {newest})")


def _newest(table: str, column: str, actions: tuple[str, ...]) -> int:
    """No id above it was ever given: as each was one more than those there were, so many have been made."""
    connection = op.get_bind()
    named = ", ".join(f"'{action}'" for action in actions)
    queries = [
        f"SELECT max(id) FROM {table}",
        f"SELECT max({column}) FROM usage",
        f"SELECT count(*) FROM audit_log WHERE outcome = 'done' AND action IN ({named})",
    ]
    if sa.inspect(connection).has_table("sqlite_sequence"):
        queries.append(f"SELECT max(seq) FROM sqlite_sequence WHERE name = '{table}'")
    return max(connection.exec_driver_sql(query).scalar() or 0 for query in queries)


def _time(name: str, *, is_null: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=is_null)


def _create_users() -> None:
    op.create_table(
        "users",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=False),
        _time("created_at"),
        _time("disabled_at", is_null=True),
        _time("last_login_at", is_null=True),
        sa.PrimaryKeyConstraint("id", name="pk_users"),
        sa.UniqueConstraint("name", name="uq_users_name"),
        sqlite_autoincrement=True,
    )


def _create_sessions() -> None:
    op.create_table(
        "sessions",
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=False),
        _time("created_at"),
        _time("last_seen_at"),
        _time("expires_at"),
        sa.Column("address", sa.String(length=64), nullable=False),
        sa.Column("user_agent", sa.String(length=200), nullable=False),
        sa.PrimaryKeyConstraint("hash", name="pk_sessions"),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], "fk_sessions_user_id_users", ondelete="CASCADE"),
    )
    op.create_index("ix_sessions_user_id", "sessions", ["user_id"])


def _create_keys() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("prefix", sa.String(length=16), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=True),
        sa.Column("scopes", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("models", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("priority", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("max_concurrency", sa.Integer(), nullable=True),
        sa.Column("requests_per_minute", sa.Integer(), nullable=True),
        _time("created_at"),
        _time("expires_at", is_null=True),
        _time("revoked_at", is_null=True),
        _time("last_used_at", is_null=True),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
        sa.UniqueConstraint("hash", name="uq_api_keys_hash"),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], "fk_api_keys_user_id_users", ondelete="CASCADE"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_api_keys_user_id", "api_keys", ["user_id"])
