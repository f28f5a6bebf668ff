# A thin front to the CMake presets. Every target first installs what is missing (tools/setup.sh).
.PHONY: demo build test bench lint asan tsan fuzz soak

demo:
	@tools/setup.sh tools/demo.sh

build:
	@tools/setup.sh tools/build.sh release programs

test:
	@tools/setup.sh tools/test.sh

lint:
	@tools/setup.sh --with checks --with lint tools/lint.sh

asan tsan:
	@tools/setup.sh tools/sanitize.sh $@

# PART=adam, disk, step, bound, plan or ladder runs one; ARGUMENTS="..." goes to bench/run.py, which
# has --help.
bench:
	@PART=$(PART) tools/setup.sh --with bench tools/bench.sh $(ARGUMENTS)

soak:
	@tools/setup.sh tools/soak.sh

# Of each fuzzer; FUZZERS="config_config_fuzz ..." runs only these.
SECONDS ?= 60
fuzz:
	@tools/setup.sh --with fuzz tools/fuzz.sh $(SECONDS) $(FUZZERS)
