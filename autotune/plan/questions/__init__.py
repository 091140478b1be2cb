"""Questions beyond the plan of a job."""
