#!/usr/bin/env bash
# Builds hps and runs all that needs a GPU, in under ten minutes: tests, memory checker, benchmarks.
#
# Results and logs go to $OUT, or ./out. PYTHON=/path/to/python chooses the interpreter, which needs
# torch with CUDA, CuPy, nanobind, cmake and pytest; nothing is downloaded. A part that
# fails does not stop the others; the exit code is 1 if one failed, 2 if there is no GPU.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out="${OUT:-out}"
mkdir -p "$out"

say() { printf 'gpu: %s\n' "$*"; }

sees_gpu() {
  "$1" -c 'import sys, cupy, torch
sys.exit(not (torch.cuda.is_available() and cupy.cuda.runtime.getDeviceCount()))' > /dev/null 2>&1
}

# The environment of this project first, then whatever else stands on the PATH.
find_python() {
  local candidate
  for candidate in ${PYTHON:-} .venv/bin/python $(type -ap python3 python | awk '!seen[$0]++'); do
    if [ -x "$(command -v "$candidate")" ] && sees_gpu "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

if ! python="$(find_python)"; then
  say "no GPU: no python here has a torch and a CuPy that both see a CUDA device; nothing was run"
  exit 2
fi
"$python" -c 'import sys, cupy, torch
print("gpu:", torch.cuda.get_device_name(0), "| torch", torch.__version__, "| cupy",
      cupy.__version__, "| python", sys.version.split()[0])'

summary=()
failed=0

# part NAME SECONDS COMMAND...: runs a part under a time limit, its output to a log.
part() {
  local name="$1" limit="$2" started=$SECONDS status=0
  shift 2
  timeout --kill-after=10 "$limit" "$@" > "$out/$name.log" 2>&1 || status=$?
  if [ "$status" -eq 0 ]; then
    summary+=("$(printf '%-12s ok       %4d s' "$name" $((SECONDS - started)))")
  else
    failed=1
    local took=$((SECONDS - started))
    summary+=("$(printf '%-12s FAILED   %4d s  (exit %d)' "$name" "$took" "$status")")
    tail -n 40 "$out/$name.log"
  fi
  say "${summary[-1]}"
}

# By CMake alone: what setup.py needs of setuptools may be newer than what is here.
build() {
  local generator=()
  if command -v ninja > /dev/null; then generator=(-G Ninja); fi
  cmake -S . -B build/gpu "${generator[@]}" -DPython_EXECUTABLE="$python" -DHPS_MODULE_DIR="$PWD/hps" \
    -Dnanobind_DIR="$("$python" -m nanobind --cmake_dir)" &&
    cmake --build build/gpu --target _C -j "$(nproc)"
}

export PATH="$(dirname "$python"):$PATH" PYTHONPATH="$PWD"
export python
export -f build
part build 150 bash -c build
# Only files that have such tests: others may want packages that are not here.
mapfile -t files < <(grep -rlE 'mark\.gpu' tests --include='test_*.py')
part tests 150 "$python" -m pytest -q -m gpu -p no:cacheprovider "${files[@]}"
if command -v compute-sanitizer > /dev/null; then
  # Allocations of their own, so that a read past one of them is seen.
  part memcheck 120 env PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck \
    --error-exitcode 9 "$python" -m pytest -q -p no:cacheprovider -m "gpu and memcheck" \
    "${files[@]}"
else
  summary+=("$(printf '%-12s not run: compute-sanitizer is not installed' memcheck)")
fi
part benchmarks 170 "$python" -m benchmarks.run gpu_cache --device cuda:0 \
  --json "$out/gpu_cache.json"
tail -n 60 "$out/benchmarks.log"

say "summary"
printf '  %s\n' "${summary[@]}" | tee "$out/summary.txt"
exit "$failed"
