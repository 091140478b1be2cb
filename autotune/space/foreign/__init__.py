"""Configurations of other tools, read as jobs: a table of fields for each tool. Pure."""
