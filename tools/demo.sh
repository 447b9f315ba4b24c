#!/usr/bin/env bash
# The demonstration: train a DeepFM whose rows do not fit the memory budget, look into the store.
#
# Above it: `make demo`. Below it: the command line. Everything is written under demo/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

hps() { .venv/bin/python -m hps "$@"; }
step() { printf '\n== %s\n' "$*"; }

rm -rf demo
mkdir demo

step "A click log of 1,000,000 examples over 100,000 keys, from a model that is known"
hps generate demo/train.tsv --examples 1000000 --keys 100000 --seed 1 \
  --test demo/test.tsv --test-examples 100000

budget="$(.venv/bin/python tools/demo_report.py budget demo/train.tsv.json)"
step "DeepFM with a DRAM budget of a quarter of its rows ($budget bytes); the others are on SSD"
hps train demo/train.tsv --format criteo --store demo/store --model deepfm --dim 8 --lr 0.02 \
  --batch-size 2048 --dram "$budget" --test demo/test.tsv --json demo/train.json \
  --progress-seconds 3

step "The stored model, read again"
hps evaluate demo/test.tsv --store demo/store
step "The store"
hps checkpoints demo/store
hps stats demo/store
hps verify demo/store

step "Summary"
.venv/bin/python tools/demo_report.py table demo/test.tsv.json demo/train.json
