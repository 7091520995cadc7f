"""Messages as pure values: their headers, ids, instants, routes, and the checks at the door."""
