"""A bundle in the form of another tool. Pure: a bundle's texts in, texts out."""
