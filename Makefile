# Needs bash, make and Python 3.10 to 3.12. Everything else is brought by `make setup` into .venv and .cache.
SHELL := /bin/bash
.DEFAULT_GOAL := help
bin := .venv/bin

pytest := $(bin)/python -m pytest

.PHONY: help setup demo test soak soak-chaos bench lint docs test-system image-test cluster-test s3-test compose-test clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install everything into .venv and .cache (again: only what is missing)
	@deploy/setup.sh

demo: setup ## Follow a board of real flights into Elasticsearch, Redis and an audit table, then compare (DAYS=14, KEEP=1)
	@$(bin)/python -m deploy.demo $(if $(DAYS),--days $(DAYS)) $(if $(KEEP),--keep)

# Two processes, each with a JVM and servers of its own; what takes longest begins first.
test: setup ## Run every test: unit, contract, spark, oracle, e2e, chaos, the benchmarks' smoke run
	$(pytest) -n 2 --dist loadfile --no-loadscope-reorder \
		tests/benchmarks tests/oracle tests/chaos tests/e2e tests/contract tests/spark tests/unit

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
	@$(bin)/python -m deploy.readme

test-system: setup ## Run the tests that install Debian packages (as root)
	$(pytest) -n 2 --dist loadfile --no-loadscope-reorder tests/system/test_object_store.py tests/system

image-test: setup ## Build the image and run it, as root (part of test-system)
	$(pytest) tests/system/test_image.py

cluster-test: setup ## Run the service on a standalone Spark cluster (part of test-system)
	$(pytest) tests/system/test_cluster.py

s3-test: setup ## Tables, audit and state path on an S3 server (part of test-system)
	$(pytest) tests/system/test_object_store.py

compose-test: setup ## Run deploy/compose.yaml with podman-compose, as root (ports 9102, 9200, 6379 and 9090 have to be free)
	$(pytest) -s tests/nightly/test_compose.py

clean: ## Remove what tests, builds and runs leave behind; .venv and what was downloaded stay
	rm -rf .cache/servers .cache/demo .cache/screenshots .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis \
		build dist spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
