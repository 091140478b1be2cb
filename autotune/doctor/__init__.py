"""What of a machine and its stack stops a training, bends it or slows it down."""
