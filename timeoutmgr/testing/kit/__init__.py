"""The testing kit: the user's configuration on parts in memory, with a clock that tests move."""
