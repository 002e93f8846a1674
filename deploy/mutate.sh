#!/usr/bin/env bash
# Change the modules named in pyproject.toml ([tool.mutmut]) one place at a time, and count the changes no unit test fails for.
#
#   deploy/mutate.sh                                    all of them
#   deploy/mutate.sh 'cdf_replicator.delivery.retry*'  the mutants of these names, with the results of the others kept
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# mutmut keeps mutants of a former configuration: it compares the modules alone.
if [ $# -eq 0 ]; then rm -rf mutants; fi
# Tests import the changed copies in mutants/, which the working tree must not shadow.
unset PYTHONPATH
nice -n 10 .venv/bin/mutmut run --max-children "$(nproc)" "$@"
echo "mutate: what no test noticed; \`.venv/bin/mutmut show NAME\` prints the change"
.venv/bin/mutmut results
.venv/bin/mutmut results --all true > mutants/results.txt
.venv/bin/python - << 'EOF'
import collections
import pathlib

modules = collections.defaultdict(collections.Counter)
for line in pathlib.Path("mutants/results.txt").read_text().splitlines():
    name, status = line.strip().split(": ")
    modules[name.rpartition(".")[0]][status] += 1
print("mutate: mutants, killed (or stopped after their time), survived, without a test, not run")
for module, found in sorted(modules.items()):
    counts = (found.total(), found["killed"] + found["timeout"], *map(found.get, ("survived", "no tests", "not checked")))
    print("".join(f"{count or 0:6}" for count in counts), "", module)
EOF
