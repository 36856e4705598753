#!/bin/sh
# Tenon's sharding of Llama-3 8B and 1B on 8 x 8 H100 beside AutoParallel's, by AutoParallel's prices:
# bench/autoparallel.py of both. Minutes of a core, most of them AutoParallel's.
# Usage: bench/autoparallel.sh AUTOPARALLEL [PYTHON]
#   AUTOPARALLEL  a checkout of github.com/meta-pytorch/autoparallel at a54c252
#   PYTHON        one with torch and pulp (python3)
[ -d "$1/autoparallel" ] || {
    echo "autoparallel.sh: expected a checkout of AutoParallel, found none at \"$1\"" >&2
    exit 2
}
for more in '8b' '1b' '1b --flat'; do
    # shellcheck disable=SC2086 # options
    "${2:-python3}" bench/autoparallel.py "$1" --model $more || exit 1
done
