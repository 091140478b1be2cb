"""Memory and exchange by arithmetic. Pure."""
