"""Who may do what: tokens, where a request comes from, what a job over HTTP may name."""
