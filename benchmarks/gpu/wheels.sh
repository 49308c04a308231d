#!/usr/bin/env bash
# Wheels for a machine with torch and no package index: bash benchmarks/gpu/wheels.sh FOLDER [NAME...]
# NAMEs: of packages that it lacks; those that torchdoctor needs and torch's users seldom have, else.
set -euo pipefail
FOLDER=${1:?name a folder for the wheels}
shift
if [ $# -eq 0 ]; then set -- msgspec isal libcst; fi
PYTHON_VERSION=${PYTHON_VERSION:-3.12}
python3 -m pip download --quiet --dest "$FOLDER" --only-binary=:all: --no-deps --implementation cp \
  --python-version "$PYTHON_VERSION" --platform manylinux_2_28_x86_64 \
  --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --platform any \
  "$@"
