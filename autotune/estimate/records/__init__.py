"""What a trace is, and how it is continued to other shapes and depths. Pure."""
