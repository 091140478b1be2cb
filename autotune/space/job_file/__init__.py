"""A job file and its overrides, as a job."""
