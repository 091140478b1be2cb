"""Which shapes of a variant to trace, and what each of its points takes. A child only."""
