"""The testing kit: the user's configuration with parts in memory and a clock that tests move."""
