"""Messages as pure values: headers, ids, instants, routes, and checks before a send."""
