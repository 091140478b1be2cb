"""Workers have no devices of their own any more: their number says which runs they can do."""

from alembic import op
from sqlalchemy import Column, Float, Integer, String

revision = "0003"
down_revision = "0002"
_WORKERS = "service_workers"


def upgrade() -> None:
    """Make the table of workers anew: each reports every second."""
    op.drop_table(_WORKERS)
    op.create_table(
        _WORKERS,
        Column("name", String(128), primary_key=True),
        Column("machine", String(128), nullable=False),
        Column("device_kind", String(8), nullable=False),
        Column("devices", Integer, nullable=False),
        Column("device_name", String(128), nullable=False),
        Column("seen", Float, nullable=False),
    )
    op.drop_column("service_work", "machine")
