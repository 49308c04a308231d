#!/usr/bin/env bash
# Wheels for a machine that has torch and no package index: bash benchmarks/gpu/wheels.sh FOLDER
set -euo pipefail
FOLDER=${1:?name a folder for the wheels}
PYTHON_VERSION=${PYTHON_VERSION:-3.12}
python3 -m pip download --quiet --dest "$FOLDER" --only-binary=:all: --no-deps \
  --python-version "$PYTHON_VERSION" --platform manylinux2014_x86_64 --platform manylinux_2_28_x86_64 \
  --platform any hatchling pathspec pluggy packaging trove-classifiers isal msgspec libcst pyyaml \
  scipy numpy pytest iniconfig pygments pytest-timeout
