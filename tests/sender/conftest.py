"""Properties are tried as ``tests.support.properties`` says."""

import tests.support.properties  # noqa: F401 - read before the tests are
