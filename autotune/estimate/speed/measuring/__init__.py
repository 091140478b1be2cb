"""The rates of a device, measured. A child only."""
