"""How the tables of the timeout stores came to be, revision by revision."""
