#!/usr/bin/env bash
# Builds hps and runs all that needs a GPU, in one call of at most ten minutes: tests, steps of a
# Pipeline with the profile of one, verbs, and the four tools of compute-sanitizer.
#
# Results and logs go to $OUT, or ./out; summary.txt says how each part went. PYTHON=/path/to/python
# chooses the interpreter, which needs torch with CUDA, CuPy, nanobind, cmake and pytest; nothing is
# downloaded. A part that fails, or takes too long, does not stop the others; the exit code is 1 if
# one failed, 2 if there is no GPU. BUDGET is the seconds for all parts together.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out="${OUT:-out}"
budget="${BUDGET:-585}"
mkdir -p "$out"

say() { printf 'gpu: %s\n' "$*"; }

sees_gpu() {
  "$1" -c 'import sys, cupy, torch
sys.exit(not (torch.cuda.is_available() and cupy.cuda.runtime.getDeviceCount()))' > /dev/null 2>&1
}

# The environment of this project first, then whatever else is on the PATH.
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

summary=()
failed=0

note() {
  summary+=("$(printf '%-10s %s' "$1" "$2")")
  say "${summary[-1]}"
}

# part NAME SECONDS COMMAND...: runs a part under a time limit, its output to a log.
part() {
  local name="$1" limit="$2" started=$SECONDS status=0
  shift 2
  if [ -z "$python" ]; then
    note "$name" "not run: no GPU"
    return
  fi
  if [ $((budget - SECONDS)) -lt "$limit" ]; then limit=$((budget - SECONDS)); fi
  if [ "$limit" -lt 5 ]; then
    failed=1
    note "$name" "FAILED   not run: no time is left of $budget s"
    return
  fi
  timeout --kill-after=5 "$limit" "$@" > "$out/$name.log" 2>&1 || status=$?
  local took=$((SECONDS - started))
  if [ "$status" -eq 0 ]; then
    note "$name" "$(printf 'ok       %4d s' "$took")"
    return
  fi
  failed=1
  if [ "$status" -eq 124 ]; then status="124: took too long"; fi
  note "$name" "$(printf 'FAILED   %4d s  (exit %s)' "$took" "$status")"
  tail -n 30 "$out/$name.log"
}

# By CMake alone: what setup.py needs of setuptools may be newer than what is here.
build() {
  local generator=()
  if command -v ninja > /dev/null; then generator=(-G Ninja); fi
  cmake -S . -B build/gpu "${generator[@]}" -DPython_EXECUTABLE="$python" \
    -DHPS_MODULE_DIR="$PWD/hps" -Dnanobind_DIR="$("$python" -m nanobind --cmake_dir)" &&
    cmake --build build/gpu --target _C -j "$(nproc)"
}

# compute-sanitizer of the PATH, of a toolkit, or of a package of this Python.
find_sanitizer() {
  local candidate
  for candidate in "$(command -v compute-sanitizer)" /usr/local/cuda*/bin/compute-sanitizer \
    $("$python" -c 'import glob, site
print(*[path for folder in site.getsitepackages()
        for path in glob.glob(f"{folder}/nvidia/*/bin/compute-sanitizer")])' 2> /dev/null); do
    if [ -n "$candidate" ] && [ -x "$candidate" ]; then
      printf '%s' "$candidate"
      return
    fi
  done
  return 1
}

# It is installed on machines whose driver does not let it look, too.
sanitizer_sees_gpu() {
  timeout --kill-after=5 40 "$sanitizer" --error-exitcode 9 "$python" -c \
    'import torch; torch.zeros(1, device="cuda")' > "$out/sanitizer.log" 2>&1
}

# sanitize TOOL SECONDS OPTIONS...: the short tests under a tool of compute-sanitizer.
sanitize() {
  local tool="$1" limit="$2"
  shift 2
  if [ -n "$python" ] && [ -n "$sanitizer_fault" ]; then
    note "$tool" "not run: $sanitizer_fault"
    return
  fi
  # Allocations of their own, so that a read past one of them is seen.
  part "$tool" "$limit" env PYTORCH_NO_CUDA_MEMORY_CACHING=1 "${sanitizer:-}" --tool "$tool" \
    --error-exitcode 9 "$@" "$python" -m pytest -q -x -p no:cacheprovider \
    -m "gpu and memcheck" "${files[@]}"
}

python="$(find_python)" || python=""
sanitizer="" sanitizer_fault=""
# Only files that have such tests: others may want packages that are not here.
mapfile -t files < <(grep -rlE 'mark\.gpu' tests --include='test_*.py')
if [ -n "$python" ]; then
  "$python" -c 'import sys, cupy, torch
print("gpu:", torch.cuda.get_device_name(0), "| torch", torch.__version__, "| cupy",
      cupy.__version__, "| python", sys.version.split()[0])'
  PATH="$(dirname "$python"):$PATH"
  export PATH PYTHONPATH="$PWD" python
  export -f build
else
  say "no python here has a torch and a CuPy that both see a CUDA device"
fi

part build 150 bash -c build
part tests 110 "$python" -m pytest -q -m gpu -p no:cacheprovider "${files[@]}"
part steps 80 "$python" -m benchmarks.gpu_cache.pipeline_steps --device cuda:0 \
  --json "$out/pipeline_steps.json" --profile "$out"
part verbs 80 "$python" -m benchmarks.run gpu_cache --device cuda:0 --json "$out/gpu_cache.json"
if [ -n "$python" ]; then
  if ! sanitizer="$(find_sanitizer)"; then
    sanitizer_fault="no compute-sanitizer was found"
  elif ! sanitizer_sees_gpu; then
    sanitizer_fault="$sanitizer does not see the GPU; see sanitizer.log"
  fi
fi
sanitize memcheck 60
sanitize racecheck 50
sanitize synccheck 40
# Padding between a row's parts is copied, and never written.
sanitize initcheck 40 --track-unused-memory no
for name in steps verbs; do
  if [ -f "$out/$name.log" ]; then tail -n 40 "$out/$name.log"; fi
done

say "summary"
printf '  %s\n' "${summary[@]}" | tee "$out/summary.txt"
if [ -z "$python" ]; then exit 2; fi
exit "$failed"
