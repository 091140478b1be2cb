"""A run as it goes, in a few rows below what it prints."""
