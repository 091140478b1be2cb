"""A worker has a number of devices, and no list of those that are its own."""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Drop the workers, which report every second: `open_database` makes their table anew."""
    op.drop_table("service_workers")
    op.drop_column("service_work", "machine")
