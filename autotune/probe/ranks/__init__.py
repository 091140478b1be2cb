"""Several processes of one probe, told of as one."""
