#!/bin/sh
# Makes an environment of peers, unless it is there already: "peers.sh" that of peers.txt, "peers.sh kernels" that of kernels.txt.
# PYTHON names the interpreter.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
list="$here/${1:-peers}.txt"
venv="$here/.peers/${1:-venv}"
cmp -s "$list" "$venv/${list##*/}" && exit 0
rm -rf "$venv"
"${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/pip" install -qq --disable-pip-version-check -r "$list"
cp "$list" "$venv/"
