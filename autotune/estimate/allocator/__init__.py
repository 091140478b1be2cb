"""torch's caching allocators, without torch. Pure."""
