#!/usr/bin/env bash
# Run the unit tests on Python 3.10, 3.11, 3.12 and 3.13, from PATH or pyenv.
# Each version has its own virtual environment under .cache/pythons. A missing version fails the run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

interpreter() {
  local found
  if command -v "python$1" > /dev/null && "python$1" -c '' 2> /dev/null; then echo "python$1"; return; fi
  for found in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python; do
    if [ -x "$found" ]; then echo "$found"; return; fi
  done
  echo "pythons: no Python $1 is installed; install it with your package manager or pyenv" >&2
  return 1
}

for version in 3.10 3.11 3.12 3.13; do
  python=$(interpreter "$version")
  venv=.cache/pythons/$version
  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
  PIP_CONSTRAINT=$PWD/deploy/constraints.txt "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
  echo "pythons: $("$venv/bin/python" --version)"
  "$venv/bin/python" -m pytest -q tests/unit
done
