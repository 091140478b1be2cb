"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make them."""
    op.create_table(
        "service_deleted",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "service_tokens",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("expires", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_table(
        "service_work",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("submitter", sa.String(length=64), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("model_config_json", sa.Text(), nullable=True),
        sa.Column("arguments", sa.Text(), nullable=False),
        sa.Column("method", sa.String(length=16), nullable=False),
        sa.Column("model", sa.String(length=256), nullable=False),
        sa.Column("device", sa.String(length=128), nullable=False),
        sa.Column("device_kind", sa.String(length=8), nullable=False),
        sa.Column("device_count", sa.Integer(), nullable=False),
        sa.Column("parent", sa.String(length=32), nullable=True),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("started", sa.Float(), nullable=True),
        sa.Column("ended", sa.Float(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("deaths", sa.Integer(), nullable=False),
        sa.Column("worker", sa.String(length=128), nullable=True),
        sa.Column("machine", sa.String(length=128), nullable=True),
        sa.Column("lease_until", sa.Float(), nullable=True),
        sa.Column("stop_wanted", sa.Boolean(), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("outcome", sa.String(length=32), nullable=False),
        sa.Column("tokens_per_s", sa.Float(), nullable=True),
        sa.Column("peak_memory_bytes", sa.Float(), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("text", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("events", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "service_work_by_state",
        "service_work",
        ["state", "kind", "priority", "created"],
        unique=False,
    )
    op.create_index("service_work_by_time", "service_work", ["created"], unique=False)
    op.create_table(
        "service_workers",
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("machine", sa.String(length=128), nullable=False),
        sa.Column("device_kind", sa.String(length=8), nullable=False),
        sa.Column("devices", sa.Text(), nullable=False),
        sa.Column("device_name", sa.String(length=128), nullable=False),
        sa.Column("instance", sa.String(length=32), nullable=False),
        sa.Column("seen", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "service_events",
        sa.Column("work", sa.String(length=32), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("utc", sa.Float(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["work"], ["service_work.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("work", "number"),
    )
    op.create_table(
        "service_files",
        sa.Column("work", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["work"], ["service_work.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("work", "name"),
    )
    op.create_table(
        "service_sources",
        sa.Column("work", sa.String(length=32), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("lines", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["work"], ["service_work.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("work", "attempt", "name"),
    )
