"""Fetch the artifacts of `ivy.xml` with the Ivy inside pyspark, and check each file against `checksums.sha256`.

    python -m deploy.local.jars.fetch                the Delta jars into pyspark, the servers into .cache/downloads
    python -m deploy.local.jars.fetch delta FOLDER   one configuration of ivy.xml into FOLDER

Files with the right checksum are not fetched again, so a second run needs no network.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from cdf_replicator.spark.java import JavaNotFoundError, java_home
from deploy.local.jars.truststore import PASSWORD, write_truststore

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[2] / ".cache"
CLASSIFIER = "{http://ant.apache.org/ivy/maven}classifier"


class FetchError(RuntimeError):
    """A file could not be fetched or has another checksum. The text names the file and the next step."""


@dataclass(frozen=True)
class Artifact:
    name: str
    version: str
    kind: str
    classifier: str = ""

    @property
    def file(self) -> str:
        return f"{self.name}-{self.version}{self.classifier and '-'}{self.classifier}.{self.kind}"


def artifacts(configuration: str) -> list[Artifact]:
    """Return the artifacts of one configuration of ivy.xml."""
    found = []
    for dependency in ET.parse(HERE / "ivy.xml").iter("dependency"):
        if dependency.attrib["conf"].startswith(f"{configuration}->"):
            artifact = dependency.find("artifact")
            given = {"ext": "jar"} if artifact is None else artifact.attrib
            name, version = dependency.attrib["name"], dependency.attrib["rev"]
            found.append(Artifact(name, version, given["ext"], given.get(CLASSIFIER, "")))
    if not found:
        raise FetchError(f"ivy.xml has no configuration {configuration!r}")
    return found


def fetch(configuration: str, folder: Path) -> None:
    """Write a configuration's files into `folder` and remove other versions of them. Raise FetchError."""
    wanted = artifacts(configuration)
    sums = _checksums()
    folder.mkdir(parents=True, exist_ok=True)
    unknown = [artifact.file for artifact in wanted if artifact.file not in sums]
    if unknown:
        raise FetchError(f"deploy/local/jars/checksums.sha256 has no line for {', '.join(unknown)}")
    missing = [name for name in (artifact.file for artifact in wanted) if not _is_right(folder / name, sums[name])]
    if missing:
        print(
            f"  fetching {', '.join(missing[:8])}{f' and {len(missing) - 8} more' if len(missing) > 8 else ''}",
            flush=True,
        )
        for name in missing:
            (folder / name).unlink(missing_ok=True)
        _ivy(configuration, wanted[0].kind, folder)
    for artifact in wanted:
        file = folder / artifact.file
        if not _is_right(file, sums[artifact.file]):
            raise FetchError(
                f"{file.name} has another SHA-256 than in deploy/local/jars/checksums.sha256 (wanted {sums[file.name]}, got {_sha256(file)}): "
                f"delete {CACHE / 'ivy'} and run it again; if the error remains, do not use the file"
            )
        _remove_other_versions(file, artifact)


def _checksums() -> dict[str, str]:
    lines = (HERE / "checksums.sha256").read_text().splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def _ivy(configuration: str, kind: str, folder: Path) -> None:
    store = CACHE / "ivy" / "trust.jks"
    options: list[str] = []
    if "javax.net.ssl.trustStore" not in os.environ.get("JAVA_TOOL_OPTIONS", "") and write_truststore(store):
        options = [f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={PASSWORD}"]
    jar = next(_pyspark_jars().glob("ivy-*.jar"))
    pattern = folder / "[artifact]-[revision](-[classifier]).[ext]"
    command: list[str | Path] = [java_home() / "bin" / "java", *options, "-jar", jar]
    command += ["-ivy", HERE / "ivy.xml", "-confs", configuration, "-types", kind, "bundle"]  # a bundle is a jar
    command += ["-cache", CACHE / "ivy", "-retrieve", pattern]
    run = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if run.returncode != 0:
        raise FetchError(
            f"Ivy could not fetch {configuration!r}. Its output:\n{run.stdout}\n"
            "Behind a proxy, set JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=... -Dhttps.proxyPort=...' and run it again."
        )


def _pyspark_jars() -> Path:
    package = importlib.util.find_spec("pyspark")
    if package is None or package.origin is None:
        raise FetchError("pyspark is not installed: run `make setup`")
    return Path(package.origin).parent / "jars"


def _remove_other_versions(file: Path, artifact: Artifact) -> None:
    """Remove other versions of a jar, since two versions on one class path conflict.

    The name of a jar has the versions of Scala and Spark after `_`.
    """
    stem = artifact.name.split("_")[0]
    for other in file.parent.glob(f"{stem}[-_][0-9]*.{artifact.kind}"):
        if other != file:
            other.unlink()


def _is_right(file: Path, wanted: str) -> bool:
    return file.is_file() and _sha256(file) == wanted


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while block := content.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def main(arguments: list[str]) -> None:
    try:
        if arguments:
            configuration, folder = arguments
            fetch(configuration, Path(folder).resolve())
        else:
            fetch("delta", _pyspark_jars())
            fetch("elasticsearch", CACHE / "downloads")
            fetch("opensearch", CACHE / "downloads" / "opensearch")
    except (FetchError, JavaNotFoundError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
