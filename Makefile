# Needs make, git and Python 3.11 or newer; `make test` or `make fuzz` sets up the rest in .venv, once.
#
#   PYTHON=...     the Python to set up with (default: the first that will do, newest first)
#   FUZZ_ARGS=...  more arguments for `servecheck fuzz`
#   TEST_ARGS=...  more arguments for pytest; TEST_JOBS=0 runs it in one process
#   TORCH_ARGS=... more arguments for pip when it installs torch; VLLM_ARGS=... for the walks
#   ZOO_ARGS=...   more arguments for `servecheck zoo`; NIGHT_JOBS=... processes of a night (default: 2)
#   PART=...      what `make mutants` mutates: fast, rules, properties or theory; MUTANTS_ARGS=...
#   LOCK_ARGS=...  more arguments for `uv pip compile`, such as --upgrade

BIN       := .venv/bin
TEST_JOBS ?= auto
NIGHT_JOBS ?= 2
PART      ?= fast
UV        ?= uv

.NOTPARALLEL:
.PHONY: help setup fuzz test types lint format docs bench mutants engines vllm check lock clean \
        zoo nightly night-zoo night-walks night-recordings night-tests night-mutants

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

# The stamp .venv/.ready is written last, so a .venv without it is half made and is made anew; so is
# one older than the lock or pyproject.toml, one of another PYTHON than the one asked for, one whose
# Python is gone, and one that came along with a moved or copied tree (its paths lead to the old place).
# Two makes at once: a lock on this file lets one set up while the other waits, then looks again.
setup: ## make .venv, if it is not there or not up to date
	@set -eu; \
	ready() { \
	  test -n "$$(find .venv/.ready -newer requirements.lock -newer pyproject.toml 2>/dev/null)" \
	  && test -x $(BIN)/python && grep -qxF "in $$(pwd -P)" .venv/.ready \
	  && { test -z "$${PYTHON:-}" || grep -qxF "by $$PYTHON" .venv/.ready; }; \
	}; \
	if ready; then exit 0; fi; \
	if test -n "$${PYTHON:-}"; then set -- "$$PYTHON"; \
	else set -- python3.14 python3.13 python3.12 python3.11 python3; fi; \
	python=; venvless=; \
	for p do \
	  case $$("$$p" -c 'import sys; print(sys.version_info >= (3, 11)); import ensurepip, venv; print(1)' \
	    </dev/null 2>/dev/null | tr '\n' ' ') in \
	    'True 1 ') python=$$p; break;; \
	    'True ') venvless=$${venvless:-$$p};; \
	  esac; \
	done; \
	if test -z "$$python" && test -n "$$venvless"; then \
	  v=$$("$$venvless" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	  echo "error: $$venvless has no venv module; on Debian or Ubuntu: apt install $$v" >&2; exit 1; \
	elif test -z "$$python"; then \
	  echo "error: needs Python 3.11 or newer, found none as: $$*" >&2; exit 1; \
	fi; \
	echo "Setting up .venv with $$python, once; this takes a minute or less ..."; \
	exec 9<Makefile; "$$python" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)' || :; \
	if ready; then exit 0; fi; \
	rm -rf .venv; \
	"$$python" -m venv .venv; \
	pip() { PIP_USER=0 $(BIN)/python -m pip --disable-pip-version-check --no-input -qq "$$@"; }; \
	pip install --require-hashes -r requirements.lock; \
	pip install --no-deps --no-build-isolation -e .; \
	printf '%s\n' "in $$(pwd -P)" "by $$python" >.venv/.ready

fuzz: setup ## fuzz the engine against the specification
	@$(BIN)/servecheck fuzz $(FUZZ_ARGS)

test: setup ## run the tests
	@$(BIN)/pytest -n $(TEST_JOBS) --maxprocesses 8 $(TEST_ARGS)

types: setup ## check the types
	@$(BIN)/mypy --strict

lint: setup ## check style and format
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

format: setup ## mend style and format
	@$(BIN)/ruff check --fix-only
	@$(BIN)/ruff format

docs: setup ## make spec/README.md and traces/trace.schema.json anew from the code
	@$(BIN)/python -m servecheck.document

bench: setup ## measure the speed; beside vLLM where `make engines` has built it
	@$(BIN)/pytest benchmarks --benchmark-only -p no:xdist
	@if test -x .engines/vllm/bin/python; then \
	  PYTHONPATH=spec:impl:. .engines/vllm/bin/python -m benchmarks.beside_vllm; fi

# mutmut is not in the lock: nobody else needs it. What it wants of it stands in pyproject.toml. A run
# goes on where it was stopped, until the code is another: `rm .mutants/fast.*` begins anew.
mutants: setup ## change the code in one place at a time, and see which tests notice
	@$(BIN)/python -c 'import mutmut' 2>/dev/null || PIP_USER=0 $(BIN)/python -m pip \
	  --disable-pip-version-check --no-input -qq install $$($(BIN)/python -c 'import tomllib; \
	  print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["mutation"])')
	@mkdir -p .mutants
	@PYTHONPATH=. nice $(BIN)/python -m tests.mutation --part $(PART) --resume .mutants/$(PART).jsonl \
	  $(MUTANTS_ARGS)

# torch is taken from where pip takes it, with CUDA on Linux; TORCH_ARGS can name an index of builds
# without. The stamp is written last, as in `setup`.
engines: setup ## make .engines/vllm, vLLM 0.33.0 beside servecheck; 2 GB or more
	@set -eu; \
	home=.engines/vllm; want=engines/vllm-0.33.0.txt; \
	if test -n "$$(find $$home/.ready -newer $$want 2>/dev/null)" \
	  && grep -qxF "in $$(pwd -P)" $$home/.ready; then exit 0; fi; \
	echo "Setting up $$home, once; this takes some minutes ..."; \
	rm -rf $$home; \
	$(BIN)/python -m venv $$home; \
	pip() { PIP_USER=0 $$home/bin/python -m pip --disable-pip-version-check --no-input -qq "$$@"; }; \
	pip install -c $$want $(TORCH_ARGS) torch; \
	pip install --no-deps -r $$want; \
	site=$$($$home/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	printf '%s\n' "$$(pwd -P)/spec" "$$(pwd -P)/impl" >"$$site/servecheck.pth"; \
	printf '%s\n' "in $$(pwd -P)" >$$home/.ready

vllm: engines ## run vLLM beside the specification, tests and walks at random
	@.engines/vllm/bin/python -m pytest tests/test_vllm.py
	@.engines/vllm/bin/python -m servecheck.engines.vllm $(VLLM_ARGS)

zoo: setup ## make the rows of docs/zoo.md and traces/zoo anew as far as they are stale; half an hour
	@$(BIN)/servecheck zoo --seeds 10 --jobs $(NIGHT_JOBS) --keep traces/zoo \
	  --resume impl/servecheck/zoo/results.jsonl $(ZOO_ARGS) || test $$? -eq 1
	@$(BIN)/python -m servecheck.document

# Each part is run, whatever became of those before it; what failed is told at the end.
nightly: setup ## all that takes hours: zoo, long campaign, recordings, long tests, mutants
	@$(MAKE) --keep-going --no-print-directory \
	  night-zoo night-walks night-recordings night-tests night-mutants

night-zoo: setup
	@$(BIN)/servecheck zoo --seeds 10 --jobs $(NIGHT_JOBS) $(ZOO_ARGS)

night-walks: setup
	@$(BIN)/servecheck fuzz --driver walks --steps 10_000_000 --jobs $(NIGHT_JOBS)

night-recordings: setup
	@bad=; for events in traces/vllm-*/*.events.jsonl $${SERVECHECK_RECORDINGS:+"$$SERVECHECK_RECORDINGS"/*.events.jsonl}; do \
	  case $${events##*/} in async_*) continue;; esac; \
	  $(BIN)/servecheck replay --recording "$${events%.events.jsonl}" || bad=1; \
	done; test -z "$$bad"

night-tests: setup
	@SERVECHECK_SLOW=1 $(BIN)/pytest -n $(NIGHT_JOBS) $(TEST_ARGS)

night-mutants: setup
	@for part in fast rules properties theory; do $(MAKE) --no-print-directory mutants PART=$$part; done

check: lint types test ## all that CI runs

lock: ## make requirements.lock anew from pyproject.toml; needs uv
	@command -v "$(UV)" >/dev/null || { echo "error: needs uv: pip install uv, or UV=path" >&2; exit 1; }
	@"$(UV)" pip compile -q --universal --fork-strategy fewest --python-version 3.11 --generate-hashes \
	  --group dev --custom-compile-command "make lock" $(LOCK_ARGS) -o requirements.lock pyproject.toml

clean: ## remove .venv, caches and builds
	@rm -rf .venv .mutants .hypothesis .mypy_cache .pytest_cache .ruff_cache dist
	@find spec impl tests -name __pycache__ -prune -exec rm -rf {} +
