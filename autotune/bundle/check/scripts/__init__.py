"""What a launch script says, as far as it can be told without running it."""
