"""Questions that a plan answers besides."""
