#!/bin/bash
# check-configs.sh - build and test in other configurations: ./dev configs
#
# From a copy of the tracked files, each in a directory of its own, so that
# building outside the source tree is tried as well.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
TOP=$PWD WORK=$PWD/build/configs
NAMES=(minimal sanitizer clang distcheck)

usage() {
	cat <<'END'
usage: ./dev configs [NAME[:TEST,...]]...   (default: all)

  minimal    without MPI, PMIx, oneDNN, CUDA, NCCL, Slurm and zstd
  sanitizer  address and undefined behaviour, stops at the first finding
  clang      another compiler, warnings are errors
  distcheck  make distcheck: the tarball, read-only source, install, uninstall

NAME:TEST,... runs only the tests whose names hold one of the words.
END
}

options() { # options NAME: arguments of configure, one a line
	case $1 in
	minimal)
		printf -- '--without-%s\n' mpi pmix dnnl cuda nccl slurm zstd ;;
	sanitizer)
		printf '%s\n' --enable-sanitizer=address,undefined 'CFLAGS=-O1 -g' ;;
	clang) printf '%s\n' CC=clang --enable-werror ;;
	distcheck) ;;
	esac
}

tests() { # tests [WORD,...]: those that hold a word; all without
	local word t
	for t in $(make -s print-tests); do
		[[ -n ${1:-} ]] || echo "$t"
		for word in ${1//,/ }; do
			[[ $t != *"$word"* ]] || { echo "$t" && break; }
		done
	done | paste -sd ' '
}

check() { # check NAME [WORD,...]
	local args
	mapfile -t args < <(options "$1")
	rm -rf "${WORK:?}/$1" && mkdir "$WORK/$1" && cd "$WORK/$1"
	../source/configure -q "${args[@]}"
	if [[ $1 == distcheck ]]; then
		make -s distcheck TESTS="$(tests "${2:-}")"
		return
	fi
	make -s -j"$(nproc)"
	make -s -j"$(nproc)" check-programs
	make -s prove PROVE_TESTS="$(tests "${2:-}")"
}

main() {
	local spec name rc failed=()
	[[ ${1:-} != @(-h|--help) ]] || { usage && exit; }
	# By itself, since "set -e" does not hold in a command that is tested.
	if [[ ${1:-} == __check ]]; then
		check "${@:2}"
		exit
	fi
	(($#)) || set -- "${NAMES[@]}"
	for spec; do
		[[ " ${NAMES[*]} " == *" ${spec%%:*} "* ]] || { usage >&2 && exit 64; }
	done
	# The reference samples are beside the real source, not beside the copy.
	export FSDP_SAMPLES=${FSDP_SAMPLES:-$TOP/../shared/samples}
	chmod -R u+w "$WORK" 2>/dev/null || true # what a distcheck left
	rm -rf "$WORK" && mkdir -p "$WORK/source"
	git ls-files -z | xargs -0 cp --parents -t "$WORK/source"
	(cd "$WORK/source" && autoreconf -i >"$WORK/autoreconf.log" 2>&1) || {
		tail -n 20 "$WORK/autoreconf.log" >&2
		exit 1
	}
	for spec; do
		name=${spec%%:*} rc=0
		[[ $spec == *:* ]] && spec=${spec#*:} || spec=
		echo "== $name: $(options "$name" | paste -sd ' ')"
		bash "$TOP/scripts/check-configs.sh" __check "$name" "$spec" </dev/null >"$WORK/$name.log" 2>&1 || rc=$?
		grep -E '^(Files|Result)|ready for distribution' "$WORK/$name.log" || true
		((rc == 0)) || {
			tail -n 40 "$WORK/$name.log"
			echo "configs: $name failed with status $rc; all of it is in $WORK/$name.log"
			failed+=("$name")
		}
	done
	((!${#failed[@]})) || { echo "configs: failed: ${failed[*]}" >&2 && exit 1; }
}

main "$@"
