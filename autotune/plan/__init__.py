"""Plans: the memory and the speed that are expected of the candidates of a space."""
