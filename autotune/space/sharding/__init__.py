"""How a training is spread over devices."""
