"""The report of a run: what is in it (`content`), gathered from its folder, and as one HTML file.
The terminal's is in `cli/report.py`."""
