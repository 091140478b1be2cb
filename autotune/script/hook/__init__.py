"""A folder for PYTHONPATH: Python loads its `sitecustomize.py` before any script."""
