"""Start Spark's JVM from an archive of its classes, which are parsed and verified already.

Loading the classes of Spark and Delta takes a quarter of the processor time to the first delivered row. An archive belongs to one
Java and one set of jars: the JVM compares its own version, and the order, sizes and modification times of the jars, and starts
without the archive if they differ. `deploy/local/class_archive.py` writes the archive.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyspark

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ARCHIVE", "CLASS_PATH", "JARS", "class_path", "settings"]

ARCHIVE: Final = Path(sys.prefix, "share", "cdf-replicator", "classes.jsa")
"""Belongs to one Python environment, as the jars in pyspark's folder do."""
CLASS_PATH: Final = "spark.driver.extraClassPath"
JARS: Final = Path(pyspark.__file__).parent / "jars"
_OPERATORS: Final = re.compile(r"-Xshare:|-XX:SharedArchiveFile|-XX:ArchiveClassesAtExit")


def settings(named_options: str, conf: Mapping[str, str], archive: Path = ARCHIVE) -> tuple[str, dict[str, str]]:
    """Return the JVM option and the Spark setting that use the archive; both are empty without an archive.

    They are empty too if the operator sets the class path or an option of class-data sharing. The log of class-data sharing is
    off, since it goes to stdout and reports an archive that does not match at each start.

    Args:
        named_options: All JVM options of the operator, from the environment and the Spark settings.
        conf: The operator's Spark settings.
        archive: The file of the archive.
    """
    if not archive.is_file() or CLASS_PATH in conf or _OPERATORS.search(named_options):
        return "", {}
    return f'-XX:SharedArchiveFile="{archive}" -Xlog:cds*=off', {CLASS_PATH: class_path()}


def class_path() -> str:
    """Return Spark's jars in the order of their names.

    Spark's launcher names its folder of settings first, which the JVM accepts in an archive only if it is empty, and then the
    jars in the order of the file system. The JVM compares the class path up to the last jar that supplied a class.
    """
    return ":".join(map(str, sorted(JARS.glob("*.jar"))))
