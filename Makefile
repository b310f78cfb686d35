# Everything a contributor runs. Each target does its own set-up on a fresh machine (python3.11,
# g++ and make are enough) and does nothing that was done before.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
TORCH := 2.13.0

# As in setup.py: TORCH_SPYRE_DEBUG=1 builds with -O0 -g, beside the optimised objects.
MODE := $(if $(filter-out 0 false off,$(TORCH_SPYRE_DEBUG)),-debug)
BUILT := $(VENV)/.built$(MODE)

CSRC := torch_spyre/csrc
# Folders too: their time changes when a file is removed.
CSRC_FILES := $(shell find $(CSRC) -type d -o -name '*.cpp' -o -name '*.h' -o -name '*.inl')
CARD_CPP := $(shell find $(CSRC)/card $(CSRC)/cost -name '*.cpp' | sort)
FORMATTED := $(shell find $(CSRC) tests -name '*.cpp' -o -name '*.h' -o -name '*.inl')

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: help setup demo browser test test-cpp test-fuzz test-python test-checked test-slow conformance fuzz bench lint \
        format docs wheel clean

help:  ## this list
	@awk -F ':.*## *' '/^[a-z-]+:.*##/ {printf "  %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ---- Set-up -----------------------------------------------------------------------------------

setup: $(BUILT)  ## a venv with the package, editable, and its extension

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Torch comes first: the extension is compiled against the copy that is installed.
$(VENV)/.torch: | $(BIN)/python
	$(BIN)/python -m pip install --quiet 'setuptools>=77' wheel ninja torch==$(TORCH)
	@touch $@

$(VENV)/.package: pyproject.toml setup.py $(VENV)/.torch
	$(BIN)/python -m pip install --quiet --no-build-isolation -e '.[test,models]'
	@touch $@

# The stamp is as old as the start of the build, so that a file saved meanwhile counts as newer.
$(BUILT): $(CSRC_FILES) $(VENV)/.package
	@rm -f $(VENV)/.built*
	@touch $(VENV)/.building
	$(BIN)/python setup.py --quiet build_ext --inplace
	@mv $(VENV)/.building $@

# Tools that only some targets need: .venv/.extra-lint holds the extra `lint`, and so on.
$(VENV)/.extra-%: pyproject.toml | $(VENV)/.package
	$(BIN)/python -m pip install --quiet --no-build-isolation -e '.[$*]'
	@touch $@

# ---- Tests ------------------------------------------------------------------------------------

demo: setup  ## the device at work, in a minute
	$(BIN)/python examples/demo.py

# Tests of pages need one and are skipped without it. Elsewhere than on Debian: install chromium.
browser:  ## a chromium, where there is none and this is root on Debian
	@if command -v chromium >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq >/dev/null && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	        chromium fonts-liberation >/dev/null; then :; \
	else echo "No chromium, and none could be installed: tests of pages will be skipped."; fi

test: test-cpp test-fuzz test-python test-checked  ## everything but the slow tests

test-python: setup
	$(BIN)/python -m pytest -n 2 -m "not slow"

# Compiled kernels once more, with every access of theirs checked by the card.
CHECKED := SPYRE_CARD_CHECK=1 $(BIN)/python -m pytest -n 2 -q -m "not slow"
test-checked: setup
	$(CHECKED) tests/_inductor/test_compiled_ops.py tests/_inductor/test_compiled_graphs.py \
	    tests/_inductor/test_regressions.py tests/_inductor/test_dynamic_shapes.py \
	    tests/_inductor/test_concatenation.py tests/_inductor/test_softmax_traffic.py \
	    tests/_inductor/test_compiled_breadth.py

test-slow: setup  ## the slow tests
	$(BIN)/python -m pytest -n 2 -m slow

# Every entry of PyTorch's op_db; fails if one is wrong. The results are part of the docs.
conformance: setup  ## all of PyTorch's operations against the CPU, in a quarter of an hour
	$(BIN)/python -m tests.conformance --tests all --json docs/conformance.json --page docs/conformance.md

# The card's unit tests are linked with the very objects of the extension: nothing is compiled
# twice, and what is tested is what ships.
TEST_CXXFLAGS := -std=c++20 -O1 -g -ffp-contract=off -fno-math-errno -fno-trapping-math \
                 -Wall -Wextra -Werror -I$(CSRC) -pthread
CARD_OBJECTS := $(CARD_CPP:%.cpp=build/ext$(MODE)/%.o)
CPP_TESTS := $(patsubst %.cpp,build/%,$(wildcard tests/card/test_*.cpp))

build/tests/card/%.o: tests/card/%.cpp
	@mkdir -p $(@D)
	$(CXX) $(TEST_CXXFLAGS) -MMD -MP -c -o $@ $<

$(CPP_TESTS): %: %.o $(BUILT)
	$(CXX) -pthread -o $@ $< $(CARD_OBJECTS)

# In a make of their own: built side by side, while the targets of `make test` take turns.
PARALLEL := @$(MAKE) --no-print-directory -j$(shell nproc)

test-cpp: $(BUILT)
	$(PARALLEL) $(CPP_TESTS)
	@for test in $(CPP_TESTS); do echo "$$test"; "$$test" || exit 1; done

# The fuzzer has objects of its own: everything in it is built with the sanitizers.
ASAN_CXXFLAGS := -std=c++20 -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined \
                 -fno-sanitize-recover=all -ffp-contract=off -fno-math-errno \
                 -fno-trapping-math -Wall -Wextra -Werror -I$(CSRC) -pthread
FUZZER := build/asan/fuzz_programs
FUZZER_OBJECTS := $(patsubst %.cpp,build/asan/%.o,$(CARD_CPP) tests/card/fuzz_programs.cpp)

build/asan/%.o: %.cpp
	@mkdir -p $(@D)
	$(CXX) $(ASAN_CXXFLAGS) -MMD -MP -c -o $@ $<

$(FUZZER): $(FUZZER_OBJECTS)
	$(CXX) $(ASAN_CXXFLAGS) -o $@ $^

test-fuzz:
	$(PARALLEL) $(FUZZER)
	$(FUZZER) 3000

fuzz:  ## 100,000 mutated card programs under AddressSanitizer and UBSan
	$(PARALLEL) $(FUZZER)
	$(FUZZER) 100000

-include $(CPP_TESTS:=.d) $(FUZZER_OBJECTS:.o=.d)

# ---- Benchmarks, habits, docs -----------------------------------------------------------------

bench: setup  ## every benchmark; results as JSON in benchmarks/results
	@failed=""; for script in benchmarks/[a-z]*.py; do \
	  echo "== $$script"; $(BIN)/python $$script || failed="$$failed $$script"; \
	done; test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

lint: setup $(VENV)/.extra-lint  ## ruff, mypy, clang-format: report only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(FORMATTED)

format: $(VENV)/.extra-lint  ## ruff and clang-format: rewrite
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(FORMATTED)

docs: setup $(VENV)/.extra-docs  ## HTML into docs/_build/html
	$(BIN)/sphinx-build --fail-on-warning --keep-going -b html docs docs/_build/html

wheel: setup  ## a wheel into dist
	rm -rf build/lib* build/bdist*  # setuptools would pack modules that were removed since
	$(BIN)/python -m pip wheel --no-build-isolation --no-deps --wheel-dir dist .

clean:  ## what was built; the venv stays
	rm -rf build dist *.egg-info docs/_build benchmarks/results
	find torch_spyre -name '*.so' -delete
	rm -f $(VENV)/.built*
