"""The tests; a package, so that helpers import as ``tests.services`` in any installation."""
