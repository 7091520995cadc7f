"""How the table of a delayed message store came to be, revision by revision."""
