#!/bin/sh
# Compiles the sources in this folder to the PTX beside them. Needs nvcc (13.0 wrote what is
# committed); another version's output may differ in text, and its results may not.
#
# Usage: tests/data/cuda/regenerate.sh [nvcc]
set -eu
cd "$(dirname "$0")"
nvcc=${1:-nvcc}
for source in *.cu; do
    name=${source%.cu}
    case $name in
        hopper) arch=compute_90 ;;
        *) arch=compute_80 ;;
    esac
    "$nvcc" -ptx -arch="$arch" -std=c++17 -O3 --fmad=false -o "$name.ptx" "$source"
done
