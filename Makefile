# A thin front to the CMake presets. Every target first installs what is missing (tools/setup.sh).
.PHONY: demo build test

demo:
	@tools/setup.sh tools/demo.sh

build:
	@tools/setup.sh tools/build.sh release programs

test:
	@tools/setup.sh tools/test.sh
