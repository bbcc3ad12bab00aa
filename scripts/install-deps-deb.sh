#!/bin/bash
# install-deps-deb.sh - the one list of Debian packages that the project needs.
#
#     install-deps-deb.sh           install those that are missing (root)
#     install-deps-deb.sh --check   say which are missing; exit 1 if any is
#     install-deps-deb.sh --list    print the list
set -euo pipefail

PACKAGES=(
	# build
	autoconf autoconf-archive automake gcc libc6-dev libtool make pkg-config
	# libraries: checkpoints
	libhdf5-dev libisal-dev libjansson-dev libssl-dev libzstd-dev
	# libraries: runtime
	libdnnl-dev libopenmpi-dev libpmix-dev
	# the private cluster (libpmix-dev has the libpmix.so that srun loads)
	iproute2 munge openmpi-bin procps slurm-wlm util-linux
	# the demo: English text, and foreign readers of our files
	fortunes hdf5-tools python3 python3-h5py python3-numpy
	# tests
	binutils btrfs-progs g++ git man-db mandoc perl sharness shellcheck xz-utils zstd
	# tests: readers of what we write, and a place for PyPI's
	python3-torch python3-venv
	# ./dev format, ./dev bench ckpt
	clang-format time
)

missing() {
	local p
	for p in "${PACKAGES[@]}"; do
		# shellcheck disable=SC2016 # dpkg-query's own variable
		[[ $(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null) == installed ]] ||
			echo "$p"
	done
}

die() { # die STATUS LINE...
	printf 'install-deps-deb: %s\n' "${@:2}" >&2
	exit "$1"
}

case ${1:-} in
--list) printf '%s\n' "${PACKAGES[@]}" && exit ;;
--check | '') ;;
*) die 64 "'$1'? (--check, --list, or nothing)" ;;
esac

command -v dpkg-query >/dev/null ||
	die 69 'no dpkg here; install what these Debian packages hold:' "${PACKAGES[*]}" \
		'then go on with autoreconf -i && ./configure && make'
mapfile -t need < <(missing)
((${#need[@]})) || exit 0
[[ ${1:-} != --check ]] || die 1 "missing packages: ${need[*]}"
((EUID == 0)) ||
	die 69 "missing packages: ${need[*]}" "not root; run: sudo apt-get install ${need[*]}"
command -v apt-get >/dev/null || die 69 "missing packages: ${need[*]}" 'and no apt-get to install them'

# One at a time: two checkouts may want to install at once.
exec 9>"/run/lock/fsdp-install-deps.lock"
flock 9
mapfile -t need < <(missing)
((${#need[@]})) || exit 0
echo "install-deps-deb: installing ${need[*]}"
export DEBIAN_FRONTEND=noninteractive
apt=(apt-get -qq -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0)
"${apt[@]}" update </dev/null || die 69 'apt-get update failed' "missing packages: ${need[*]}"
"${apt[@]}" install -y --no-install-recommends "${need[@]}" </dev/null >/dev/null ||
	die 69 'apt-get install failed' "missing packages: ${need[*]}"
mapfile -t need < <(missing)
((!${#need[@]})) || die 69 "still missing: ${need[*]}"
