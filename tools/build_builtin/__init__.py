"""Scripts that make the data and the tiny models shipped with this project (see README.md)."""
