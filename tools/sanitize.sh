#!/usr/bin/env bash
# Builds the native module with sanitizers of g++ and runs the tests that reach it.
#
#     tools/sanitize.sh [PYTHON] [address|thread]
#
# address: faults of memory and undefined behaviour, over the whole suite. thread: races, over the thread pool, the
# executor, sessions that many threads use, and the store of weights. Both builds have our own assertions compiled in
# (native/base/assert.h). Both run if none is named. PYTHON (python3 if not given) has the packages of the extra
# "dev", and cmake, ninja and nanobind.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$(command -v "${1:-python3}")
export PATH="$(dirname "$python"):$PATH"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The plainest kernels and the best ones that this machine may have: the two ends of what intrinsics do.
isas=base
grep -q avx512_vnni /proc/cpuinfo && isas="base;avx512vnni"

# build NAME FLAGS: a copy of the package with this module in it goes before whichever is installed.
build() {
  cmake -S . -B "$work/$1" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS="$2 -O1 -g -fno-omit-frame-pointer -DSARDONYX_ASSERTIONS" \
    -DSARDONYX_KERNEL_LEVEL=-O1 -DSARDONYX_ISAS="$isas" -DPython_EXECUTABLE="$python" \
    > "$work/configure.log" || { cat "$work/configure.log"; exit 1; }
  cmake --build "$work/$1" --target _native > "$work/build.log" || { tail -n 40 "$work/build.log"; exit 1; }
  mkdir -p "$work/$1/src"
  cp -r src/sardonyx "$work/$1/src/sardonyx"
  rm -f "$work/$1"/src/sardonyx/_native*.so
  cp "$work/$1"/_native*.so "$work/$1/src/sardonyx/"
  export PYTHONPATH="$work/$1/src:$PWD"
}

# Python itself is not built with sanitizers, so their libraries are loaded first. ThreadSanitizer wants addresses
# that are not random. A report must pass pytest, which dies with it, on its way out.
run() { LD_PRELOAD="$preload" PYTHONMALLOC=malloc setarch -R "$python" "$@"; }
tests() { run -m pytest -p no:cacheprovider --capture=sys "$@"; }
is_there() {
  run -c "
import sardonyx._native as native
assert native.__file__.startswith('$work'), native.__file__
maps = open('/proc/self/maps').read()
assert all(name in maps for name in '$*'.split()), 'the sanitizers are not there'"
}

address() {
  # vptr checks need type information of nanobind's hidden classes.
  build address "-fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=all"
  # What Python never frees is no leak of ours. Frames that g++ 13 moves to the heap are not aligned for vectors.
  export ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1:detect_stack_use_after_return=0" UBSAN_OPTIONS="print_stacktrace=1"
  preload="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libstdc++.so.6)"
  is_there libasan libubsan
  # Torch's own libraries and processes that tests start by themselves are not built for sanitizers.
  tests tests --ignore=tests/torch --ignore=tests/train --ignore=tests/cli --ignore=tests/test_as_onnxruntime.py
}

thread() {
  build thread "-fsanitize=thread"
  export TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1"
  preload="$(g++ -print-file-name=libtsan.so) $(g++ -print-file-name=libstdc++.so.6)"
  is_there libtsan
  # It ends processes that fork and start threads again.
  tests -k "not fork and not child" tests/native/test_pool.py tests/session/test_threads.py tests/session/test_stress.py \
    tests/session/test_program_cache.py tests/session/test_fast_path.py tests/weights/test_sharing.py
}

for kind in ${2:-address thread}; do "$kind"; done
echo "sanitizers: nothing found"
