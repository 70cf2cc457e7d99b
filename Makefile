# Short names for what scripts/, CMake and CTest do. `make help` lists them.
MODEL := tinystories
JOBS := $(shell nproc)

# $(call built,PRESET): configure and build. $(call tested,PRESET): the same, and its tests.
built = cmake --preset $(1) --log-level=WARNING && cmake --build --preset $(1) -j $(JOBS)
tested = $(call built,$(1)) && ctest --preset $(1) -j $(JOBS)
# $(call timed,NAME,COMMANDS): runs them, then says how long they took.
timed = @start=$$(date +%s); $(2) && echo "== $(1): $$(($$(date +%s) - start)) s"
sources = git ls-files -z '*.h' '*.cc' '*.inc' '*.cu'

.PHONY: help build demo bench test check check-format check-asan check-tsan check-clang format setup setup-tests

help:
	@echo "make demo [MODEL=smollm2]  bring up a small cluster on this machine and show it at work"
	@echo "make build                 install what is missing and build into build/release"
	@echo "make test                  build and run every test"
	@echo "make bench                 measure the attention kernel and the throughput of the demo's cluster"
	@echo "make check                 format, sanitizers (address, undefined, thread) and Clang"
	@echo "make format                put the C++ sources into shape"

setup:
	@scripts/setup

setup-tests:
	@scripts/setup --tests

build: setup
	@$(call built,release)

demo: build
	@scripts/demo --model $(MODEL)

bench: build
	@scripts/bench

test: setup-tests
	$(call timed,test,$(call tested,release))

check: check-format check-asan check-tsan check-clang

check-format: setup-tests
	$(call timed,check-format,$(sources) | xargs -0 clang-format-14 --dry-run --Werror)

check-asan: setup-tests
	$(call timed,check-asan,$(call tested,asan))

check-tsan: setup-tests
	$(call timed,check-tsan,$(call tested,tsan))

# The tests that run real clusters have run twice by then.
check-clang: setup-tests
	$(call timed,check-clang,$(call built,clang) && ctest --preset clang -j $(JOBS) -LE integration)

format: setup-tests
	@$(sources) | xargs -0 clang-format-14 -i
