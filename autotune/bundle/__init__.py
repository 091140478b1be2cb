"""Recommendation -> files. Pure; one file a format."""
