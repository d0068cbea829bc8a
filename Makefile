# Needs only Python 3.11 or newer, and make. Every target first installs what it needs into .venv: `demo` the package
# alone, the others all extras and the test tools too.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/core.stamp
DEV := $(VENV)/dev.stamp
INSTALL := $(BIN)/pip install --disable-pip-version-check -qq --constraint constraints.txt --editable
# One process per core, one thread each (tests/conftest.py). A file is tested by one process, which makes its fixtures once.
PYTEST := $(BIN)/pytest --numprocesses auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder --durations 10 -rs

define show
	@printf '\n$$ %s\n' "$(1)"
	@$(BIN)/$(1)
endef

.PHONY: demo test test-fast test-all check docs bench clean

demo: $(CORE)  ## train on built-in images for a minute, then predict and explain
	@rm -rf runs/demo runs/demo-images runs/demo-explained
	$(call show,vitreous fit builtin --budget 60s --out runs/demo)
	@$(BIN)/python -c "from vitreous.data.builtin import write_images; write_images('runs/demo-images')"
	$(call show,vitreous predict runs/demo runs/demo-images --top-k 2)
	$(call show,vitreous explain runs/demo runs/demo-images/Sneaker-1.png --out runs/demo-explained)
	@echo
	@echo "Open these files:"
	@echo "  runs/demo/report.html                           how accurate the model is, and its mistakes"
	@echo "  runs/demo-explained/Sneaker-1-relevance.png     what it looked at"
	@echo "Train on your own images, one folder per class:"
	@echo "  $(BIN)/vitreous fit PHOTOS --budget 5m"

test-fast: $(DEV)  ## what to run before every commit: two minutes on two cores
	$(PYTEST) -m "not slow and not exhaustive"

test: $(DEV)  ## every guarantee: twelve minutes on two cores
	$(PYTEST) -m "not exhaustive"

test-all: test  ## and long searches for faults; UNTIL=SECONDS (since 1970): start none of them later
	$(PYTEST) -m exhaustive $(if $(UNTIL),--until $(UNTIL))

check: $(DEV)  ## format, lint, types, who imports whom, generated pages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest tests/test_layers.py
	$(BIN)/python docs/generate.py --check

docs: $(DEV)  ## write the generated pages anew
	$(BIN)/python docs/generate.py

bench: $(DEV)  ## measure the model's speed against its peers
	$(BIN)/python benchmarks/model_speed.py

clean:
	rm -rf $(VENV)

$(CORE): pyproject.toml constraints.txt
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'vitreous needs Python 3.11 or newer; say which with: make PYTHON=python3.11')"
	@echo "Installing vitreous into $(VENV) (about a minute)."
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) .
	@touch $@

$(DEV): $(CORE)
	@echo "Installing all extras and the test tools into $(VENV) (2.6 GB; some minutes)."
	@$(INSTALL) ".[dev]"
	@touch $@
