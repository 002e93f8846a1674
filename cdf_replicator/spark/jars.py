"""The jars that Delta needs in addition to pyspark's: exactly the tested versions, cached in a folder of the user.

Spark's package resolution would add dozens of jars in other versions than pyspark's, at each start.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyspark
import structlog

from cdf_replicator.spark.class_archive import JARS
from cdf_replicator.spark.java import SparkStartError, java_home

if TYPE_CHECKING:
    from cdf_replicator.settings.models import Spark

log = structlog.get_logger(__name__)

LIST: Final = Path(__file__).parent / "conf" / "jars.sha256"
IVY: Final = """<ivy-module version="2.0">
  <info organisation="cdf-replicator" module="jars"/>
  <dependencies>
{}
  </dependencies>
</ivy-module>
"""
DEPENDENCY: Final = '    <dependency org="{}" name="{}" rev="{}" transitive="false" conf="default"/>'


_DELTA_HINT: Final = (
    "The Delta jars can be supplied in three ways: in pyspark's own jars folder, in a folder named by CDF_SPARK__JARS, or "
    "fetched once from Maven Central into the user's cache folder (behind a proxy or a CA of your own, set JAVA_TOOL_OPTIONS)."
)


class JarsError(Exception):
    """The jars are not available; the text says why."""


@dataclass(frozen=True, slots=True)
class Jar:
    sha256: str
    organisation: str
    name: str
    version: str

    @property
    def file(self) -> str:
        return f"{self.name}-{self.version}.jar"


def listed() -> list[Jar]:
    """Return the tested jars."""
    lines = (line.split() for line in LIST.read_text("utf-8").splitlines())
    return [Jar(digest, *coordinates.split(":")) for digest, coordinates in lines]


def for_delta(settings: Spark) -> dict[str, str]:
    """Return Spark's setting for the jars that Delta needs, empty if pyspark has them; raises ``SparkStartError``."""
    # Jars in pyspark's own folder are on this machine only.
    is_sent = settings.jars is not None and not settings.master.startswith("local")
    if not is_sent and any(JARS.glob("delta-spark_*.jar")):
        return {}
    if settings.jars is None:
        try:
            found = cached()
        except JarsError as error:
            raise SparkStartError(f"{error} {_DELTA_HINT}") from error
    else:
        found = sorted(Path(settings.jars).glob("*.jar"))
        if not any(jar.name.startswith("delta-spark_") for jar in found):
            raise SparkStartError(f"no delta-spark_*.jar in CDF_SPARK__JARS={settings.jars}. {_DELTA_HINT}")
    return {"spark.jars": ",".join(map(str, found))}


def cached(folder: Path | None = None) -> list[Path]:
    """Return the files of the listed jars, fetching those that are missing; raise ``JarsError`` if that fails.

    Args:
        folder: folder of the files; a folder below the user's cache if None.

    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = folder or Path(home) / "cdf-replicator" / "jars"
    jars = listed()
    files = [folder / jar.file for jar in jars]
    if not all(_is_right(file, jar) for file, jar in zip(files, jars, strict=True)):
        log.info("fetching Delta jars from Maven Central", folder=str(folder), jars=len(jars))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as apart:
                _fetch(jars, Path(apart), folder)
        except OSError as error:
            raise JarsError(f"The Delta jars can't be kept in {folder}: {error.strerror}.") from error
    return files


def _fetch(jars: list[Jar], apart: Path, folder: Path) -> None:
    """Fetch the jars into a separate folder with pyspark's Ivy, then move them, so that only whole files are ever visible."""
    module = apart / "ivy.xml"
    module.write_text(
        IVY.format("\n".join(DEPENDENCY.format(j.organisation, j.name, j.version) for j in jars)), "utf-8"
    )
    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    command: list[str | Path] = [java_home() / "bin" / "java", "-jar", ivy, "-ivy", module, "-confs", "default"]
    command += ["-types", "jar", "-cache", apart / "ivy", "-retrieve", apart / "[artifact]-[revision].[ext]"]
    run = subprocess.run(  # noqa: S603 - own java, no input of a user
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    wrong = [jar.file for jar in jars if not _is_right(apart / jar.file, jar)]
    if run.returncode != 0 or any(not (apart / name).exists() for name in wrong):
        raise JarsError(f"Ivy could not fetch the Delta jars. Its output: {' '.join(run.stdout.split())[-1000:]}")
    if wrong:
        raise JarsError(f"Fetched jars do not match the tested checksums and are not used: {', '.join(wrong)}.")
    for jar in jars:
        (apart / jar.file).replace(folder / jar.file)


def _is_right(file: Path, jar: Jar) -> bool:
    return file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == jar.sha256
