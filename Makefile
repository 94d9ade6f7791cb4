# What a developer types. It needs Python 3.11 or later, make and a compiler; the rest goes into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CODE := src tests $(wildcard benchmarks)
# Those for a CPU that need no base; benchmarks/gpu.py runs what needs a GPU.
BENCHMARKS := $(sort $(filter-out benchmarks/gpu.py benchmarks/quality.py benchmarks/finetune.py benchmarks/defaults.py benchmarks/instructions.py,$(wildcard benchmarks/*.py)))

# One thread in each of two workers: more of them wait for one another. The user's own cache stays untouched.
# Byte code is kept where the environment forbids it too: the workers and each process of a test compile the sources else.
PYTEST = cache=$$(mktemp -d) && trap 'rm -rf "$$cache"' EXIT && \
	REGARD_CACHE="$$cache" PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: demo test test-fast lint bench venv browser postgresql

demo: venv # train on dates in many languages, evaluate, compare, explain and certify
	$(BIN)/regard demo

test: lint browser postgresql # format, types, and all tests
	@$(PYTEST)

test-fast: venv # the tests that take seconds
	@$(PYTEST) -m "not slow"

lint: venv # format, style and types
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/pyright

bench: venv # every script in benchmarks/, one after the other
	@test -n "$(BENCHMARKS)" || echo "there is no script in benchmarks/ yet"
	@for script in $(BENCHMARKS); do echo "$$script" && $(BIN)/python "$$script" || exit 1; done

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt -e ".[parquet,excel,zstd,tensorboard,gguf,onnx,ctranslate2,chemistry,control,postgresql,serve,dev]"
	@touch $@

# The tests of pages are skipped where there is no browser, so that a missing one is not an error.
browser:
	@command -v chromedriver >/dev/null 2>&1 && exit 0; \
	test "$$(id -u)" = 0 && command -v apt-get >/dev/null 2>&1 && \
	apt-get update >/dev/null 2>&1 && \
	DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium chromium-driver \
		>/dev/null 2>&1 || \
	echo "Chromium and ChromeDriver are not installed: the tests of pages are skipped"

# The test of sweeps that machines share is skipped where there is no server, so that a missing one is not an error.
postgresql:
	@command -v initdb >/dev/null 2>&1 && exit 0; \
	ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 && exit 0; \
	test "$$(id -u)" = 0 && command -v apt-get >/dev/null 2>&1 && \
	apt-get update >/dev/null 2>&1 && \
	DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends postgresql iproute2 >/dev/null 2>&1 || \
	echo "PostgreSQL is not installed: the test of shared sweeps is skipped"
