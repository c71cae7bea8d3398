"""The evidence: demonstrations and comparisons made with `agents`."""
