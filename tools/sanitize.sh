#!/usr/bin/env bash
# Builds the native module with the address and undefined-behaviour sanitizers of g++, and runs the tests that
# reach it: tests/native, and models with changed bytes and other faults.
#
#     tools/sanitize.sh [PYTHON]
#
# PYTHON (python3 if not given) has the packages of the extra "dev", and cmake, ninja and nanobind.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$(command -v "${1:-python3}")
export PATH="$(dirname "$python"):$PATH"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# vptr checks need type information of nanobind's hidden classes.
flags="-fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=all -fno-omit-frame-pointer"
cmake -S . -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS="$flags -O1 -g" \
  -DPython_EXECUTABLE="$python" > "$work/configure.log" || { cat "$work/configure.log"; exit 1; }
cmake --build "$work/build" --target _native > "$work/build.log" || { cat "$work/build.log"; exit 1; }

# A copy of the package with this module in it goes before whichever is installed.
mkdir "$work/src"
cp -r src/sardonyx "$work/src/sardonyx"
rm -f "$work"/src/sardonyx/_native*.so
cp "$work"/build/_native*.so "$work/src/sardonyx/"
export PYTHONPATH="$work/src:$PWD"

# Python itself is not built with them, so their libraries are loaded first; what it never frees is no leak of ours.
export ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1" UBSAN_OPTIONS="print_stacktrace=1"
preload="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libstdc++.so.6)"
run() { LD_PRELOAD="$preload" PYTHONMALLOC=malloc "$python" "$@"; }

run -c "
import sardonyx._native as native
assert native.__file__.startswith('$work'), native.__file__
maps = open('/proc/self/maps').read()
assert 'libubsan' in maps and 'libasan' in maps, 'the sanitizers are not there'"
run -m pytest -q -p no:cacheprovider tests/native tests/load tests/test_hostile.py::test_changed_bytes
echo "sanitizers: nothing found"
