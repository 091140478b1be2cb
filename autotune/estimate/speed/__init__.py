"""Time from counted work and the rates of a device. Pure."""
