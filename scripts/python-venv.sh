#!/bin/bash
# python-venv.sh - a Python with the libraries whose files are ours too.
#
#     python-venv.sh           the system's, with Debian's PyTorch and h5py and
#                              PyPI's safetensors
#     python-venv.sh --torch   all of them from PyPI, the newest PyTorch
#
# Prints the path of the interpreter.  The environment is made once, below
# build/; PIP_INDEX_URL and pip's other variables choose where it comes from.
set -euo pipefail
cd "$(dirname "$0")/.."

die() { # die STATUS LINE...
	printf 'python-venv: %s\n' "${@:2}" >&2
	exit "$1"
}

case ${1:-} in
'')
	dir=build/venv
	options=(--system-site-packages)
	packages=(safetensors)
	;;
--torch)
	dir=build/torch-venv
	options=()
	packages=(torch numpy safetensors h5py)
	;;
*) die 64 "'$1'? (--torch, or nothing)" ;;
esac

mkdir -p build
exec 9>build/venv.lock
flock 9
if [[ ! -e $dir/complete ]]; then
	[[ ! -e $dir ]] || rm -rf "$dir"
	/usr/bin/env "${PYTHON:-python3}" -m venv "${options[@]}" "$dir" >&2 ||
		die 69 'no virtual environment: install python3-venv'
	"$dir/bin/python" -m pip install -q --disable-pip-version-check \
		"${packages[@]}" >&2 ||
		die 69 "pip cannot install ${packages[*]}"
	touch "$dir/complete"
fi
echo "$PWD/$dir/bin/python"
