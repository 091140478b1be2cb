"""Files of a launch, read together: what disagrees."""
