#!/usr/bin/env bash
# Mutate the modules of [tool.mutmut] in pyproject.toml and count the mutants for which no unit test fails.
#
#   tests/nightly/mutate.sh                                   all mutants
#   tests/nightly/mutate.sh 'cdf_replicator.delivery.retry*'  the mutants with these names; keeps the results of the others
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# mutmut keeps mutants of an earlier configuration: it compares only the modules.
if [ $# -eq 0 ]; then rm -rf mutants; fi
# Tests import the mutated copies in mutants/. PYTHONPATH would put the working tree before them.
unset PYTHONPATH
nice -n 10 .venv/bin/mutmut run --max-children "$(nproc)" "$@"
echo "mutate: mutants that no test detected; \`.venv/bin/mutmut show NAME\` prints the change"
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
