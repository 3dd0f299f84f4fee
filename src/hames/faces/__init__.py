"""The ways in: each face turns what its user does into calls of the rooms below."""
