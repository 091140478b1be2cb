"""Run by Alembic: brings the database of a connection to the newest version."""

from alembic import context

from autotune.server.store.database import VERSION_TABLE
from autotune.server.store.tables import Table

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Table.metadata,
    version_table=VERSION_TABLE,
)
with context.begin_transaction():
    context.run_migrations()
