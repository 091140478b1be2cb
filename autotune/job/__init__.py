"""The job: what the user asks for."""
