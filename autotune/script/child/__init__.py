"""The side of the user's script: what the hook does in the process that trains."""
