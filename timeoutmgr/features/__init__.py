"""Features: the abilities of an endpoint beyond sending and handling."""
