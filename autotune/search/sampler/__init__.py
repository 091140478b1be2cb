"""The samplers: where to look next."""
