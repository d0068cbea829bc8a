# Every target makes its own virtual environment first. Needs only Python 3.11 or newer, and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

# A process for each core, with one thread each (tests/conftest.py); then, alone, what depends on the clock, from the files
# that have such tests: to collect all takes longer. Both parts run even where the first fails, unless it is interrupted; the
# status is that of both.
define run_tests
	@trap 'exit 130' INT; status=0; \
	$(BIN)/pytest --numprocesses auto --maxprocesses 8 --dist loadgroup --durations 40 --durations-min 5 -rs -m "not clock $(1)" || status=1; \
	$(BIN)/pytest -m "clock $(1)" $$(grep -rl --include="*.py" "mark\.clock" tests) || status=1; \
	exit $$status
endef

.PHONY: demo test test-fast check docs bench clean

demo: $(READY)  ## the main job, on built-in pictures: train for a minute, then use the model
	rm -rf runs/demo
	$(BIN)/vitreous fit builtin --budget 60s --out runs/demo
	$(BIN)/python -c "from vitreous.data.builtin import write_pictures; write_pictures('runs/demo-pictures')"
	$(BIN)/vitreous predict runs/demo runs/demo-pictures --top 2

test: $(READY)  ## the whole test suite
	$(call run_tests)

test-fast: $(READY)  ## the test suite without the slow tests
	$(call run_tests,and not slow)

check: $(READY)  ## format, lint, types, who imports whom, generated pages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest tests/test_layers.py
	$(BIN)/python docs/generate.py --check

docs: $(READY)  ## write the generated pages anew
	$(BIN)/python docs/generate.py

bench: $(READY)  ## measure the model's speed against its peers
	$(BIN)/python benchmarks/model_speed.py

clean:
	rm -rf $(VENV)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'vitreous needs Python 3.11 or newer; say which with: make PYTHON=python3.11')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@
