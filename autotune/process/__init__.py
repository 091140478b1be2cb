"""Children: how they start, are watched, and end."""
