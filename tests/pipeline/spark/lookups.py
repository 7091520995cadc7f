"""Java's names, looked up once: pyspark asks the JVM for them anew each time a column is named.

To name a column takes five calls, two of them to resolve ``functions`` and its member. A job names
hundreds of columns: that is nothing in a job, and a tenth of the time of all these tests.
"""

from __future__ import annotations

from typing import Any, Final

from py4j.java_gateway import JavaClass, JavaMember

_CLASSES: Final = ("functions", "org.apache.spark.sql.functions", "PythonUtils", "PythonSQLUtils")
"""Names of the classes whose static methods make columns and plans, as pyspark asks for them."""


class _Remembered(JavaClass):  # type: ignore[misc]  # py4j has no types
    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if isinstance(found, JavaMember):  # a method stays the same, a field may change
            setattr(self, name, found)
        return found


def remember_names(jvm: Any) -> None:
    """Have *jvm*, py4j's view of a JVM, ask once for the names that pyspark needs most."""
    for name in _CLASSES:
        found = getattr(jvm, name)
        setattr(jvm, name, _Remembered(found._fqn, found._gateway_client))
