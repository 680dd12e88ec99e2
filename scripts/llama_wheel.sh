#!/usr/bin/env bash
# Builds llama-cpp-python from source once per version and flags, and prints the path of the wheel. The flags make it run
# on every x86-64 processor with AVX2, not only on the one that built it: a native wheel kept by CI would die elsewhere.
# pip's own cache ignores CMAKE_ARGS, so the wheel is kept here. LLAMA_WHEELS names another folder than .wheels.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(sed -n 's/^ *"llama-cpp-python==\(.*\)",$/\1/p' plugins/llama_worker/pyproject.toml)
flags="-DGGML_NATIVE=OFF -DGGML_METAL=OFF -DLLAMA_CURL=OFF -DLLAVA_BUILD=OFF -DMTMD_BUILD=OFF"
if [ "$(uname -m)" = x86_64 ]; then
  flags="$flags -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON -DGGML_AVX512=OFF"
fi
key=$(printf '%s' "$version $flags $(uname -sm)" | cksum | cut -d' ' -f1)
folder="${LLAMA_WHEELS:-.wheels}/$version-$key"
if ! ls "$folder"/*.whl >/dev/null 2>&1; then
  # Built beside its place and moved there whole, so that an interrupted build leaves nothing that looks finished.
  building="$folder.building.$$"
  CMAKE_ARGS="$flags" "${PYTHON:-python3}" -m pip wheel --quiet --no-deps --no-cache-dir \
    --no-binary llama-cpp-python --wheel-dir "$building" "llama-cpp-python==$version" >&2
  rm -rf "$folder"
  mv "$building" "$folder"
fi
ls "$folder"/*.whl
