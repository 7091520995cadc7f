"""Which micro-batches a folder and a checkpoint tell of: both have to be of one stream.

Spark numbers the micro-batches of a stream by its checkpoint, where it notes them before they begin
(``offsets``) and after they ended (``commits``). The folder has a log of its own of those that it
holds. A micro-batch whose number is in there is not written again: so it is after a crash that both
agree. Where they are of two streams it is another one, and is dropped without a word.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from timeoutmgr.pipeline.errors import RunInTheWay
from timeoutmgr.pipeline.frames import is_inside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HELD: Final = "_spark_metadata"
_BEGUN: Final = "offsets"
_ENDED: Final = "commits"
_COMPACT: Final = ".compact"
_NONE: Final = -1


def require_pair(spark: "SparkSession", folder: Path, checkpoint: Path) -> None:
    """Raise RunInTheWay where *folder* was not written with *checkpoint*, as the numbers tell.

    Spark itself looks, on the file system that the paths have for it. Through Spark Connect it
    shows no such thing: there this process looks for them on its own file system, and where it
    does not see them under the paths that the server has, nothing is refused.
    """
    held, begun, ended = (
        _last(_names(spark, where))
        for where in (folder / _HELD, checkpoint / _BEGUN, checkpoint / _ENDED)
    )
    if held > begun:
        raise RunInTheWay(
            f"{folder} holds the micro-batches up to number {held}, and the checkpoint "
            f"{checkpoint} {_up_to(begun)}: new events would get numbers that are there already, "
            "and would not be written; go on with the checkpoint that the folder was written "
            "with, or begin with another folder"
        )
    if held < ended:
        raise RunInTheWay(
            f"the checkpoint {checkpoint} is behind micro-batch number {ended}, and {folder} "
            f"{_up_to(held)}: what was written before is not there, and Spark could not read what "
            "comes; go on with the folder that the checkpoint was used with, or begin with "
            "another checkpoint and another folder"
        )


def _up_to(number: int) -> str:
    return "has none" if number == _NONE else f"only has those up to number {number}"


def _last(names: Iterable[str]) -> int:
    """Return the highest number of a micro-batch among *names*, those of the files of a log."""
    numbers = (name.removesuffix(_COMPACT) for name in names)
    return max((int(number) for number in numbers if number.isdecimal()), default=_NONE)


def _names(spark: "SparkSession", folder: Path) -> list[str]:
    if not is_inside(spark):
        return [one.name for one in folder.iterdir()] if folder.is_dir() else []
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(str(folder))
    files = path.getFileSystem(context._jsc.hadoopConfiguration())
    return [one.getPath().getName() for one in files.listStatus(path)] if files.exists(path) else []
