"""Alembic's steps from an older database to the tables of `tables.py`."""
