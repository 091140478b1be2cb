"""The probes: what a short training really takes."""
