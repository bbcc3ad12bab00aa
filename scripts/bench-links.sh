#!/bin/bash
# bench-links - prefetch on against off, between nodes over throttled links
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
	cat <<'END'
usage: ./dev bench links [--rate RATE] [--steps N] [--nodes N] [TRAIN-OPTION]...

Trains on a private cluster whose links are throttled (default 1gbit), one rank
a node (default 2), with prefetch depths 0, 1 and 2 in turn, and prints step
time and exposed communication of each: medians of all steps but the first two.
END
}

rate=1gbit steps=12 nodes=2
while (($#)); do
	case $1 in
	-h | --help) usage && exit ;;
	--rate) rate=$2 && shift 2 ;;
	--steps) steps=$2 && shift 2 ;;
	--nodes) nodes=$2 && shift 2 ;;
	*) break ;;
	esac
done

dir=$(mktemp -d /tmp/fsdp-bl.XXXXXX)
export CLUSTER_DIR=$dir/c
trap 'slurm/cluster down >/dev/null 2>&1; rm -rf "$dir"' EXIT

seq 1 60000 | sed 's/$/ bottles of ink stand upon the shelf/' >"$dir/text"
slurm/cluster up -n "$nodes" -c 2 -o SlurmdTimeout=60 >/dev/null
slurm/cluster link all "$rate"

# median FIELD FILE: of the steps after the second
median() {
	grep '"event":"step"' "$2" | tail -n +3 |
		sed -E "s/.*\"$1\":([-+.e0-9]+).*/\1/" | sort -g |
		awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}

printf '%d ranks on %d nodes, links of %s\n\n' "$nodes" "$nodes" "$rate"
printf '%-10s %12s %14s %9s\n' prefetch 'step, s' 'exposed, s' ratio
for depth in 0 1 2; do
	slurm/cluster run srun --mpi=pmix -K1 -N "$nodes" -n "$nodes" \
		bin/fsdp-train "$dir/text" --layers 8 --width 384 --heads 6 \
		--vocab 8192 --seq 256 --batch 4 --micro-batches "$nodes" \
		--steps "$steps" --valid 0 --strategy full --prefetch "$depth" \
		--json "$@" >"$dir/$depth.json"
	step=$(median seconds "$dir/$depth.json")
	: "${base:=$step}"
	printf '%-10s %12.3f %14.3f %9.2f\n' "$depth" "$step" \
		"$(median exposed_seconds "$dir/$depth.json")" \
		"$(awk "BEGIN { print $step / $base }")"
done
