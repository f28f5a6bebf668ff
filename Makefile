# A thin front to the CMake presets. Every target first installs what is missing (dev/setup.sh).
.PHONY: demo build wheel test bench lint asan tsan fuzz soak mutants

demo:
	@echo "demo: trains GPT-2 124M on real text with its 2 GB of state on disk; two or three minutes on 2 cores." >&2
	@echo "demo: the first time it also downloads 3 GB of packages and compiles: about four minutes more." >&2
	@dev/setup.sh dev/demo.sh

build:
	@dev/setup.sh dev/build.sh release programs

# The Python package, into dist/.
wheel:
	@dev/setup.sh dev/wheel.sh

test:
	@dev/setup.sh dev/test.sh

lint:
	@dev/setup.sh --with checks --with lint dev/lint.sh

asan tsan:
	@dev/setup.sh dev/sanitize.sh $@

# PART=micro, adam, disk, step, bound, plan, ladder, checkpoint, trainer, hooks, ranks or inference: one;
# ARGUMENTS="..." goes to bench/run.py, which has --help.
bench:
	@PART=$(PART) dev/setup.sh --with bench dev/bench.sh $(ARGUMENTS)

soak:
	@dev/setup.sh dev/soak.sh

# Of each fuzzer; FUZZERS="zero3_config_fuzz ..." runs only these.
SECONDS ?= 60
fuzz:
	@dev/setup.sh --with fuzz dev/fuzz.sh $(SECONDS) $(FUZZERS)

# Which lines of the Python package no test would miss: ARGUMENTS="--count 100 --seed 7".
mutants:
	@dev/setup.sh dev/build.sh release programs artesian_python
	@dev/setup.sh python3 dev/mutants.py $(ARGUMENTS)
