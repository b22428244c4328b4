#!/usr/bin/env bash
# Builds the kernels for AArch64 with a cross compiler and runs their tests there, under emulation.
#
#     tools/aarch64.sh [PYTHON] [PYTEST ARGUMENTS...]
#
# Needs aarch64-linux-gnu-g++ and qemu-aarch64-static (Debian: g++-aarch64-linux-gnu, qemu-user-static). PYTHON
# (python3 if not given) has the package with its extra "dev" installed, and cmake and ninja. The build stays in
# build/aarch64. Without other arguments it runs every kernel row that tests reach, and the tests of strided
# inputs, packed operands and internal ops.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$(command -v "${1:-python3}")
shift || true
export PATH="$(dirname "$python"):$PATH"
for tool in aarch64-linux-gnu-g++ qemu-aarch64-static; do
  command -v "$tool" > /dev/null || { echo "$tool is not installed"; exit 1; }
done

cmake -S . -B build/aarch64 -G Ninja -DSARDONYX_KERNELS_ONLY=ON -DPython_EXECUTABLE="$python" \
  -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
  -DCMAKE_EXE_LINKER_FLAGS=-static > /dev/null
cmake --build build/aarch64

export SARDONYX_RUNNER_HAS=neon SARDONYX_RUNNER="qemu-aarch64-static $PWD/build/aarch64/run_kernels"
if [ $# -eq 0 ]; then
  set -- tests/native/test_isa.py::test_calls_run_on_the_remote_machine tests/test_kernels.py \
    $(grep -lE 'native\.(call|isas)|run_call' tests/native/test_*.py | grep -v test_isa)
fi
"$python" -m pytest -p no:cacheprovider "$@"
