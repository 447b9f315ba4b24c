#!/usr/bin/env bash
# Generates hps/v1/parameter_server_pb2.py and .pyi from proto/, under the folder $1 (default: here).
#
# The compiler is pinned apart from constraints.txt: code that it makes runs on every protobuf from
# its own release on, also the next major one, while a newer compiler's would need a newer runtime.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out="${1:-.}"
compiler=build/proto-compiler
wanted="grpcio-tools==VERSION"

if [ "$(cat "$compiler/.wanted" 2> /dev/null)" != "$wanted" ]; then
  rm -rf "$compiler"
  # Without its dependencies: the compiler itself is one native module.
  .venv/bin/python -m pip install -qq --no-deps --disable-pip-version-check \
    --target "$compiler" "$wanted"
  printf '%s' "$wanted" > "$compiler/.wanted"
fi
PYTHONPATH="$compiler" .venv/bin/python -m grpc_tools.protoc -I proto \
  "--python_out=$out" "--pyi_out=$out" hps/v1/parameter_server.proto
