"""The rules that leave candidates out, and that end a search."""
