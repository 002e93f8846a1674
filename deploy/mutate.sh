#!/usr/bin/env bash
# Change the modules named in pyproject.toml ([tool.mutmut]) one place at a time, and count the changes no unit test fails for.
#
#   deploy/mutate.sh                                    all of them, which takes hours
#   deploy/mutate.sh 'cdf_replicator.delivery.policy*'  the mutants of these names
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Tests import the changed copies in mutants/, which the working tree must not shadow.
unset PYTHONPATH
.venv/bin/mutmut run --max-children "$(nproc)" "$@"
echo "mutate: what no test noticed; \`.venv/bin/mutmut show NAME\` prints the change"
.venv/bin/mutmut results
.venv/bin/mutmut export-cicd-stats > /dev/null
.venv/bin/python - << 'EOF'
import json
import pathlib

found = json.loads(pathlib.Path("mutants/mutmut-cicd-stats.json").read_text())
killed = found["killed"] + found["timeout"]
print(f"mutate: {killed} of {killed + found['survived']} mutants killed, {found['no_tests']} without a test")
EOF
