"""Alembic's entry: runs the migrations on the connection that `upgrade_to_head` gives."""

from alembic import context

from trivet_registry.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,  # SQLite alters a table by rebuilding it
)
with context.begin_transaction():
    context.run_migrations()
