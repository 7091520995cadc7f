"""Files of texts whose bytes are no text: Spark would put other signs in their place."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from timeoutmgr.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A high surrogate that no low one follows, or a low one that follows no high one, as JSON escapes
# them. An even number of backslashes before it escapes nothing but themselves.
_LONE: Final = (
    r"(?<!\\)(?:\\\\)*(?:\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F])"
)
_SHOWN: Final = 120


def require_texts(spark: "SparkSession", paths: Sequence[str], *, is_json: bool) -> None:
    """Raise ConfigurationError where a line of *paths* holds bytes, or escapes, that are no text.

    Read as rows, such a sign would be a question mark in the message, without a word.
    """
    lines = spark.read.text([*paths])
    is_bad = ~f.is_valid_utf8("value")
    if is_json:
        is_bad = is_bad | f.col("value").rlike(_LONE)
    found = (
        lines.where(is_bad)
        .select(f.col("_metadata.file_path"), f.make_valid_utf8("value").alias("line"))
        .first()
    )
    if found is not None:
        raise ConfigurationError(
            f"{found[0]} holds a line that is no UTF-8, or has half of a surrogate pair: "
            f"{found[1][:_SHOWN]!r}; no message could hold it as it is. Mend the line, or write "
            "the file as UTF-8"
        )
