"""Works have no priority any more: the first that came is the next."""

from alembic import op

revision = "0002"
down_revision = "0001"
_INDEX, _WORKS = "service_work_by_state", "service_work"


def upgrade() -> None:
    """Drop it."""
    op.drop_index(_INDEX, _WORKS)
    op.drop_column(_WORKS, "priority")
    op.create_index(_INDEX, _WORKS, ["state", "kind", "created"])
