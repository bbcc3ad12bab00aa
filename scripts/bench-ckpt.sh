#!/bin/bash
# bench-ckpt.sh - the checkpoint tools beside cp, cat and PyTorch's own
#
# Ours and its peer take turns, so that both see the same disk; each time is a
# median.  cp is followed by sync, for ours syncs what it has written.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
TOP=$PWD
SIZE=4GiB RUNS=5 DIR=/tmp TORCH='' LARGE='' STATES='cold warm'
DROP=/proc/sys/vm/drop_caches

usage() {
	cat <<'END'
usage: ./dev bench ckpt [--size SIZE] [--runs N] [--dir DIR] [--state cold|warm]
                        [--large SIZE] [--torch PYTHON]

  --size SIZE     bytes of the checkpoint (default 4GiB); three times as much
                  room is needed, six times with --torch
  --runs N        runs of each, of which the median is shown (default 5)
  --dir DIR       a directory on the disk to be measured (default /tmp)
  --state NAME    only with the source in memory (warm), or only on disk (cold:
                  as root, who may empty the cache)
  --large SIZE    peak memory for a checkpoint of this size, beside 1 GiB
                  (16GiB; default: that of --size)
  --torch PYTHON  a Python with torch: measure PyTorch's tools as well, and
                  those of accelerate and deepspeed where it has them

Leave the machine alone meanwhile.
END
}

die() { # die STATUS TEXT
	echo "bench ckpt: $2" >&2
	exit "$1"
}

# The programs themselves: libtool's wrappers around them take time and memory.
ours() { # ours NAME: its path
	local real=$TOP/bin/.libs/$1
	[[ -x $real ]] && echo "$real" || echo "$TOP/bin/$1"
}

is_state() { [[ " $STATES " == *" $1 "* ]]; }

settle() { # settle STATE SOURCE: nothing to be written, the cache as it should be
	rm -rf "$WORK/out" "$WORK/out.safetensors"
	sync
	case $1 in
	cold) echo 3 >"$DROP" ;;
	warm) find "$2" -type f -exec cat {} + >/dev/null ;;
	esac
}

timed() { # timed NAME COMMAND...: seconds and peak KiB, a line of NAME.t
	local name=$1
	shift
	/usr/bin/time -q -o "$WORK/one" -f '%e %M' "$@" </dev/null >"$WORK/log" 2>&1 || {
		local rc=$?
		tail -n 5 "$WORK/log" >&2
		die 2 "'$*' ended with $rc"
	}
	cat "$WORK/one" >>"$WORK/$name.t"
}

column() { # column NAME FIELD: of all runs, sorted
	awk -v f="$2" '{ print $f }' "$WORK/$1.t" | sort -n
}

median() { # median NAME: seconds
	column "$1" 1 | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}

peak() { # peak NAME: MiB
	column "$1" 2 | awk 'END { printf "%.0f", $1 / 1024 }'
}

# One line of the first table.  The peer is a command for sh.
pair() { # pair LABEL STATE GOAL SOURCE PEER COMMAND...
	local label=$1 state=$2 goal=$3 src=$4 peer=$5 i
	shift 5
	rm -f "$WORK/ours.t" "$WORK/peer.t"
	for ((i = 0; i < RUNS; i++)); do
		settle "$state" "$src"
		timed ours "$@"
		settle "$state" "$src"
		timed peer sh -c "$peer"
	done
	settle "$state" "$src"
	awk -v label="$label" -v state="$state" -v goal="$goal" -v a="$(median ours)" \
		-v b="$(median peer)" -v peak="$(peak ours)" 'BEGIN {
			printf "%-26s %-5s %8.2f %8.2f %7.2f %6s %6d MiB\n",
				label, state, a, b, a / b, goal, peak }'
}

make_source() { # make_source SIZE DIR
	rm -rf "$2"
	t/ckpt-make --size "$1" "$2" >"$WORK/log" 2>&1 || die 2 "$(tail -n 1 "$WORK/log")"
}

bench_cp() {
	local state goal src=$WORK/ckpt dcp=$WORK/dcp out=$WORK/out
	local cp="cp -r --reflink=never $src $out && sync"
	"$(ours fsdp-convert)" --only-model --to dcp "$src" "$dcp" >/dev/null
	printf '\n%-26s %-5s %8s %8s %7s %6s %10s\n' 'beside cp + sync' cache ours peer ratio goal peak
	for state in cold warm; do
		is_state $state || continue
		[[ $state == cold ]] && goal=1.05 || goal=0.80
		pair 'reshard 4 to 3' $state $goal "$src" "$cp" \
			"$(ours fsdp-reshard)" --world 3 "$src" "$out"
		pair 'reshard full to hybrid:2' $state $goal "$src" "$cp" \
			"$(ours fsdp-reshard)" --strategy hybrid:2 "$src" "$out"
		pair 'consolidate to safetensors' $state $goal "$src" "$cp" \
			"$(ours fsdp-consolidate)" "$src" "$out.safetensors"
		[[ $state == cold ]] || goal=0.90
		pair 'dcp to safetensors, CRC-32' $state $goal "$dcp" \
			"cp -r --reflink=never $dcp $out && sync" \
			"$(ours fsdp-convert)" --only-model "$dcp" "$out.safetensors"
	done
	printf '%s\n' 'beside cat >/dev/null'
	for state in cold warm; do
		is_state $state || continue
		pair 'verify' $state 1.20 "$src" "cat $src/*/* >/dev/null" "$(ours fsdp-verify)" "$src"
	done
}

# Buffers and the program; what is mapped of a library counts as well.
bench_memory() {
	local size
	printf '\n%-26s %10s %10s %10s %10s\n' 'peak memory, goal 84 MiB' reshard consolidate dcp verify
	for size in 1GiB "${LARGE:-$SIZE}"; do
		make_source "$size" "$WORK/ckpt"
		rm -rf "$WORK/dcp" "$WORK"/m-*.t
		timed m-dcp "$(ours fsdp-convert)" --only-model --to dcp "$WORK/ckpt" "$WORK/dcp"
		rm -f "$WORK/m-dcp.t"
		timed m-reshard "$(ours fsdp-reshard)" --world 3 "$WORK/ckpt" "$WORK/out"
		timed m-verify "$(ours fsdp-verify)" "$WORK/ckpt"
		rm -rf "$WORK/out"
		timed m-consolidate "$(ours fsdp-consolidate)" "$WORK/ckpt" "$WORK/out.safetensors"
		rm -rf "$WORK/out.safetensors" "$WORK/ckpt"
		timed m-dcp "$(ours fsdp-convert)" --only-model "$WORK/dcp" "$WORK/out.safetensors"
		rm -rf "$WORK/out.safetensors" "$WORK/dcp"
		printf '%-26s %6d MiB %7d MiB %6d MiB %6d MiB\n' "$size" "$(peak m-reshard)" \
			"$(peak m-consolidate)" "$(peak m-dcp)" "$(peak m-verify)"
	done
}

torch_run() { # torch_run VERB SOURCE TARGET [WORLD]: a line "seconds mib of all ranks"
	local world=${4:-1} rank pids=() port=$((20000 + RANDOM % 10000))
	for ((rank = 0; rank < world; rank++)); do
		RANK=$rank WORLD_SIZE=$world MASTER_ADDR=127.0.0.1 MASTER_PORT=$port OMP_NUM_THREADS=1 \
			"$TORCH" scripts/bench-torch-ckpt.py "$1" "$2" "$3" </dev/null \
			>"$WORK/torch.$rank" 2>"$WORK/torch.$rank.err" &
		pids+=($!)
	done
	for rank in "${!pids[@]}"; do
		wait "${pids[rank]}" || { tail -n 3 "$WORK/torch.$rank.err" >&2 && return 1; }
	done
	sed -n 's/^seconds=\(.*\) mib=\(.*\)$/\1 \2/p' "$WORK"/torch.[0-9] |
		awk '{ mib += $2; if ($1 > s) s = $1 } END { print s, mib * 1024 }'
}

torch_pair() { # torch_pair LABEL VERB SOURCE TARGET WORLD COMMAND...
	local label=$1 verb=$2 src=$3 target=$4 world=$5 i
	shift 5
	rm -f "$WORK/ours.t" "$WORK/peer.t"
	for ((i = 0; i < RUNS; i++)); do
		settle warm "$src"
		timed ours "$@"
		settle warm "$src"
		rm -f "$WORK"/torch.*
		torch_run "$verb" "$src" "$target" "$world" >>"$WORK/peer.t" ||
			{ echo "$label: not measured" && return 0; }
	done
	settle warm "$src"
	awk -v label="$label" -v a="$(median ours)" -v b="$(median peer)" -v pa="$(peak ours)" \
		-v pb="$(peak peer)" 'BEGIN {
			printf "%-26s %8.2f %6d MiB %8.2f %6d MiB %7.2f %7.2f\n",
				label, a, pa, b, pb, a / b, pa / pb }'
}

bench_torch() {
	local dcp=$WORK/dcp zero=$WORK/zero out=$WORK/out
	printf '\n%-26s %8s %10s %8s %10s %7s %7s\n' 'beside PyTorch, warm' ours peak theirs peak time memory
	torch_pair 'DCP load + save, 4 to 3' reshard "$dcp" "$out" 3 \
		"$(ours fsdp-convert)" --to dcp --world 3 "$dcp" "$out"
	torch_pair 'dcp_to_torch_save' merge "$dcp" "$out" 1 \
		"$(ours fsdp-convert)" --only-model "$dcp" "$out.safetensors"
	if "$TORCH" -c 'import accelerate' >/dev/null 2>&1; then
		torch_pair 'accelerate merge-weights' accelerate "$dcp" "$out" 1 \
			"$(ours fsdp-convert)" --only-model "$dcp" "$out.safetensors"
	fi
	if "$TORCH" -c 'import deepspeed' >/dev/null 2>&1; then
		torch_run make-zero "$dcp" "$zero" >/dev/null
		torch_pair 'zero_to_fp32' zero "$zero" "$out" 1 \
			"$(ours fsdp-convert)" --only-model "$zero" "$out.safetensors"
	fi
}

bench_scale() {
	local many=$WORK/many meta=$WORK/meta
	printf '\n%s\n' 'scale, goals: 1 s and 500 MB; 1 s; 3 s and 500 MB'
	t/bench-ckpt plan
	t/ckpt-make --layers 2778 --width 4 --vocab 8 "$many" >/dev/null
	t/bench-ckpt open "$many"
	t/bench-ckpt make "$meta"
	t/bench-ckpt parse "$meta/.metadata"
	rm -rf "$many" "$meta"
}

main() {
	while (($#)); do
		[[ $1 != @(-h|--help) ]] || { usage && exit; }
		(($# > 1)) || die 64 "$1 needs a value"
		case $1 in
		--size) SIZE=$2 ;;
		--runs) RUNS=$2 ;;
		--dir) DIR=$2 ;;
		--state) STATES=$2 ;;
		--large) LARGE=$2 ;;
		--torch) TORCH=$2 ;;
		*) die 64 "'$1'? (see ./dev bench ckpt --help)" ;;
		esac
		shift 2
	done
	[[ $RUNS =~ ^[1-9][0-9]*$ ]] || die 64 "--runs takes a number, not '$RUNS'"
	[[ $STATES == @(cold|warm|'cold warm') ]] || die 64 "--state takes cold or warm, not '$STATES'"
	[[ -x bin/fsdp-convert ]] || die 69 'bin/fsdp-convert is not built: ./dev build'
	[[ -x /usr/bin/time ]] || die 69 'no /usr/bin/time: install the package time'
	[[ -z $TORCH ]] || "$TORCH" -c 'import torch' || die 69 "$TORCH cannot import torch"
	if is_state cold && [[ ! -w $DROP ]]; then
		echo 'not root: the cache cannot be emptied, so that only "warm" is measured'
		STATES=warm
	fi
	make -s t/ckpt-make t/bench-ckpt
	export LD_LIBRARY_PATH=$TOP/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
	WORK=$(mktemp -d "$DIR/fsdp-bench.XXXXXX")
	trap 'rm -rf "$WORK"' EXIT
	echo "$(nproc) cores: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1); $(
		df --output=fstype "$WORK" | tail -n 1) on $DIR; $SIZE, medians of $RUNS"
	make_source "$SIZE" "$WORK/ckpt"
	bench_cp
	[[ -z $TORCH ]] || bench_torch
	bench_memory
	bench_scale
}

main "$@"
