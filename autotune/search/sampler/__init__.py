"""The sampler: where to look next."""
