#!/usr/bin/env bash
# Generates hps/v1 and hps/inference (*_pb2.py and .pyi) from proto/, below the folder $1 or here.
#
# Code made by protoc 31.1, which this compiler is, runs on protobuf from 6.31.1 through all of 7. A
# newer compiler's would refuse older runtimes; this one itself wants protobuf 6, so it is pinned
# here, in a folder of its own, and not in constraints.txt. Uses the `python` of PATH.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out="${1:-.}"
compiler=build/proto-compiler
wanted="grpcio-tools==1.80.1"

if [ "$(cat "$compiler/.wanted" 2> /dev/null)" != "$wanted" ]; then
  rm -rf "$compiler"
  # Without its dependencies: the compiler itself is one native module.
  python -m pip install -qq --no-deps --disable-pip-version-check \
    --target "$compiler" "$wanted"
  printf '%s' "$wanted" > "$compiler/.wanted"
fi
PYTHONPATH="$compiler" python -m grpc_tools.protoc -I proto \
  "--python_out=$out" "--pyi_out=$out" \
  hps/v1/parameter_server.proto hps/v1/model_server.proto hps/v1/publishing.proto \
  hps/inference/open_inference.proto
