"""What runs probes: this machine (`local.py`), or the nodes of a Ray cluster (`ray_engine.py`)."""
