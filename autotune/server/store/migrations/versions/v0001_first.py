"""The first tables. A new database gets those of today at once (`open_database`)."""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Change nothing: it has them."""
