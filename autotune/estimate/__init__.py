"""What should happen: memory and time of any candidate, without a device."""
