# Needs bash, make and Python 3.10 to 3.13. Everything else is brought by `make setup` into .venv and .cache.
SHELL := /bin/bash
.DEFAULT_GOAL := help
bin := .venv/bin

pytest := $(bin)/python -m pytest

.PHONY: help setup demo test test-process test-oracle test-system image-test cluster-test s3-test compose-test nightly nightly-plans \
	nightly-faults nightly-system nightly-oracle nightly-leaks nightly-fuzz nightly-pythons mutate soak soak-chaos bench lint docs clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install everything into .venv and .cache (again: only what is missing)
	@deploy/local/setup.sh

demo: setup ## Follow a board of real flights into Elasticsearch, Redis and an audit table, then compare (DAYS=14, KEEP=1, SINKS=postgres)
	@$(bin)/python -m deploy.local.demo $(if $(DAYS),--days $(DAYS)) $(if $(SINKS),--sinks $(SINKS)) $(if $(KEEP),--keep)

# Processes, each with a JVM and servers of its own. On two cores a third one uses the time in which tests wait.
two := -n 2 --dist loadfile --no-loadscope-reorder
three := -n 3 --dist loadfile --no-loadscope-reorder
# The first two tests of the first file begin in one process, the next two in the other: their order in the file divides the time.
each := -n 2 --dist load --randomly-dont-reorganize

# Kills and restores target servers, so that it belongs to test-process.
lost_writes := tests/integration/test_lost_writes.py
# Needs further servers: OpenSearch, a Redis Cluster with Sentinels, and Elasticsearch behind TLS.
further_servers := tests/contract/opensearch tests/contract/redis/test_redis_cluster.py \
	tests/contract/elasticsearch/test_elasticsearch_tls.py
elsewhere := $(addprefix --ignore ,$(lost_writes) $(further_servers))

test: setup ## Run the unit, contract and integration tests
	$(pytest) $(three) $(elsewhere) tests/unit tests/contract tests/integration

test-process: setup ## Run the tests that need processes of their own: kills, standby, secrets, lost writes, further servers, the demo
	$(pytest) $(two) tests/process $(lost_writes) $(further_servers)

test-oracle: setup ## Run histories with every operation, random histories with the plans of production, and faults that the oracle must find
	$(pytest) $(each) tests/oracle/test_every_operation.py tests/oracle/test_planted_faults.py
	$(pytest) $(each) --plans shipped tests/oracle/test_further_histories.py

soak: setup ## Live random table histories against the oracle (SECONDS=600; SEED=41: that one again)
	@$(bin)/python -m tests.oracle.soak --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED))

soak-chaos: setup ## Faults from a seeded schedule, under a writer (SECONDS=900; SEED=41: that one again)
	@$(bin)/python -m tests.chaos.soak --seconds $(or $(SECONDS),900) $(if $(SEED),--seed $(SEED))

bench: setup ## Measure against other ways to do it (ONLY=elasticsearch,latency: some parts)
	@$(bin)/python -m tests.benchmarks $(if $(ONLY),--only $(ONLY))

lint: setup ## Check format, rules, types and import directions
	$(bin)/ruff format --check .
	$(bin)/ruff check .
	$(bin)/mypy
	$(bin)/lint-imports

docs: setup ## Write the generated parts of README.md and docs
	@$(bin)/python -m docs.generate.readme

test-system: setup ## Run the tests that install Debian packages (as root)
	$(pytest) $(three) tests/system

nightly: nightly-plans nightly-faults nightly-system nightly-oracle nightly-leaks nightly-fuzz nightly-pythons mutate compose-test ## Run everything that takes hours

nightly-plans: setup ## Run make test with the Spark plans of production
	$(pytest) $(two) --nightly --plans shipped tests/unit tests/contract tests/integration tests/oracle

nightly-faults: setup ## Run the process tier with production's plans, each fault alone, writes lost at every step, the benchmarks' smoke run, a soak
	$(pytest) $(two) --nightly --plans shipped tests/process tests/nightly/test_faults.py tests/nightly/test_benchmarks.py
	$(pytest) --timeout 3600 --nightly --every-step $(lost_writes)
	$(bin)/python -m tests.chaos.soak --seconds 900

nightly-system: setup ## Run the system tier with the tests that CI leaves out: the image as further users and twice on an object store, as root
	$(pytest) $(three) --nightly tests/system

nightly-oracle: setup ## Live a partitioned table's history with every operation, and about 200 random ones in three hours
	$(pytest) --plans shipped tests/nightly/test_histories.py
	$(bin)/python -m tests.oracle.soak --seconds 10800

nightly-leaks: setup ## Restart a route 160 times, and measure memory and open files
	$(pytest) --timeout 3600 --restarts 160 tests/integration/test_isolation.py

nightly-fuzz: setup ## Run the tests of drawn examples with many more examples
	HYPOTHESIS_PROFILE=nightly $(pytest) --timeout 3600 -n 2 -m hypothesis tests/unit

nightly-pythons: setup ## Run the unit tests on every Python from 3.10 to 3.13 that is on PATH
	@tests/nightly/pythons.sh

mutate: setup ## Change the modules that the unit tests cover, line by line, and count the changes that no test sees
	@tests/nightly/mutate.sh

image-test: setup ## Build the image and run it, as root (part of test-system)
	$(pytest) tests/system/test_image.py tests/system/test_image_storage.py

cluster-test: setup ## Run the service on a standalone Spark cluster (part of test-system)
	$(pytest) tests/system/test_cluster.py

s3-test: setup ## Tables, audit and state path on an S3 server (part of test-system)
	$(pytest) tests/system/test_object_store.py

compose-test: setup ## Run deploy/compose.yaml with podman-compose, as root (ports 9102, 9200, 6379 and 9090 have to be free)
	$(pytest) -s tests/nightly/test_compose.py

clean: ## Remove what tests, builds and runs leave behind; .venv and what was downloaded stay
	rm -rf .cache/servers .cache/demo .cache/screenshots .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis \
		build dist mutants spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
