#!/bin/sh
# What `make bench` prints: every speed and memory promise as a ratio measured in this run.
set -e
tenon=${1:-build/tenon}
$tenon bench plan --model gpt2 --batch-size 4 --seq-len 1024
$tenon bench step --model gpt2 --batch-size 4 --seq-len 64
$tenon bench step --model gpt2 --batch-size 4 --seq-len 1024
$tenon bench step --model demo --batch-size 16 --seq-len 256
