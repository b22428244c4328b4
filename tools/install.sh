#!/usr/bin/env bash
# Installs this checkout into .venv: from a wheel in wheelhouse/ or dist/ that fits this machine, else from source.
#
#     tools/install.sh [EXTRA,...]         PYTHON=python3.12 tools/install.sh serve
set -euo pipefail
cd "$(dirname "$0")/.."

extras=${1:+[$1]}
"${PYTHON:-python3}" -m venv .venv
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# pip chooses among the files of these folders alone: no index is asked for the name.
if pip download -qq --no-index --no-deps --only-binary :all: --find-links wheelhouse --find-links dist \
  --dest "$work" sardonyx 2> /dev/null; then
  wheel=$(echo "$work"/*.whl)
  echo "installing $(basename "$wheel")"
  pip install -q "$wheel$extras"
else
  cat << END
No wheel in wheelhouse/ or dist/ fits this machine: compiling from source. That takes some ten minutes of CPU time
(here $(nproc) cores): 574 C++ files, most of them kernels, which are compiled for up to four instruction sets.
END
  pip install -q ".$extras"
fi
.venv/bin/sardonyx --version
