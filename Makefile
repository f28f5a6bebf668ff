# A thin front to the CMake presets. Every target first installs what is missing (tools/setup.sh).
.PHONY: build test

build:
	@tools/setup.sh tools/build.sh release

test:
	@tools/setup.sh tools/test.sh
