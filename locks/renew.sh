#!/bin/sh
# Writes the locks anew from pyproject.toml and constraints.txt; needs uv and PyPI.
set -eu
cd "$(dirname "$0")/.."
export UV_CUSTOM_COMPILE_COMMAND="locks/renew.sh"
torch='torch|triton|cuda-[a-z]+|nvidia-[a-z0-9-]+' # PyTorch, and what PyPI's Linux build brings

# compile SOURCE OUTPUT PYTHON [options]
compile() {
    source=$1 output=$2 python=$3
    shift 3
    uv pip compile "$source" --quiet --generate-hashes --universal --no-annotate \
        -c constraints.txt --python-version "$python" -o "$output" "$@" >/dev/null
}

# all_but [-v] PATTERN: options that leave out the packages of torch.txt that match (-v: do not)
all_but() {
    grep -oE '^[a-z0-9-]+==' locks/torch.txt | tr -d = | grep -xE "$@" |
        sed 's/^/--no-emit-package /'
}

echo torch >locks/torch.in
trap 'rm -f locks/torch.in' EXIT
compile locks/torch.in locks/torch.txt 3.11
# shellcheck disable=SC2046
{
    compile pyproject.toml locks/qpd.txt 3.11 $(all_but "$torch")
    compile pyproject.toml locks/dev.txt 3.11 --extra dev $(all_but "$torch")
    compile locks/torch.in locks/torch.txt 3.11 $(all_but -v "$torch")
}
