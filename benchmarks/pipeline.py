"""The data pipeline beside Spark's own JDBC, COPY, two joins and DuckDB.

Every job alternates with its rival, in one warm session; reading in several.
The bars are ratios of processor time: JVM, Python workers and PostgreSQL together. JDBC needs
--jdbc, the driver's jar (Debian: libpostgresql-jdbc-java); DuckDB is left out if it is not
installed.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

from harness import machine
from harness.private import private_postgres
from harness.report import Report, options, parsed
from on_spark.archiving import archiving
from on_spark.bench import Bench, in_a_session
from on_spark.reading import memory, reading
from on_spark.reconciling import reconciling
from on_spark.reporting import reporting
from on_spark.scheduling import scheduling
from on_spark.streaming import streaming
from on_spark.windows import windows

PARTS: dict[str, Callable[[Bench, Report], None]] = {
    "read": reading,
    "schedule": in_a_session(scheduling),
    "archive": in_a_session(archiving),
    "reconcile": in_a_session(reconciling),
    "windows": in_a_session(windows),
    "report": in_a_session(reporting),
    "stream": in_a_session(streaming),
    "memory": in_a_session(memory),
}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--jdbc", type=Path, help="PostgreSQL's JDBC jar")
    parser.add_argument("--only", choices=sorted(PARTS), help="one part of it")
    parser.add_argument("--rows", type=int, help="rows of the memory part (10,000,000)")
    given = parsed(parser, count=1_000_000, quick=50_000)
    report = Report("The data pipeline", {"rows": given.count, **machine.described()})
    with private_postgres() as server:
        bench = Bench(server, given)
        try:
            for name, part in PARTS.items():
                if given.only in (None, name):
                    part(bench, report)
        finally:
            shutil.rmtree(bench.folder, ignore_errors=True)
    if not bench.has_jdbc:
        report.notes.append("Without --jdbc nothing was compared with Spark's JDBC.")
    report.give(given)


if __name__ == "__main__":
    main()
