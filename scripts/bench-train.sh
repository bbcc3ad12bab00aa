#!/bin/bash
# bench-train.sh - tokens/s and memory of fsdp-train, beside PyTorch FSDP2
#
# Two ranks of one thread, each bound to a core, strategy full, random tokens.
# Rates are of the median step; the first one is not counted.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
TOP=$PWD
STEPS=5 TORCH='' SHAPES=(124m small) DTYPES=(fp32 bf16) RANKS=2

usage() {
	cat <<'END'
usage: ./dev bench train [--torch PYTHON] [--steps N] [--shape NAME]...
                         [--dtype fp32|bf16]... [--keep DIR]

  --torch PYTHON  a Python with torch: measure FSDP2 on gloo as well
  --steps N       steps of each run after the first (default 5)
  --shape NAME    124m: GPT-2 124M, batch 4 x 256 a rank
                  small: 6 layers of width 384, vocabulary 8192, batch 8 x 256
  --dtype NAME    of gathered parameters (default: both)
  --keep DIR      leave logs there

Runs take turns, ours and torch's, so that both see the same machine; leave it
alone meanwhile.
END
}

die() { # die STATUS TEXT
	echo "bench train: $2" >&2
	exit "$1"
}

shape() { # shape NAME: layers width heads vocab batch
	case $1 in
	124m) echo 12 768 12 50304 4 ;;
	small) echo 6 384 6 8192 8 ;;
	*) die 64 "no shape '$1' (124m, small)" ;;
	esac
}

tokens() { # tokens VOCAB FILE: random ones, as nanoGPT's .bin
	perl -e 'srand 1; print pack "S<*", map { int rand $ARGV[0] } 1 .. 200000' "$1" >"$2"
}

core() { # core RANK: one that this process may use
	taskset -cp $$ | sed 's/.*: //' | tr , '\n' |
		awk -F- '{ for (i = $1; i <= ($2 == "" ? $1 : $2); i++) print i }' | sed -n "$(($1 + 1))p"
}

run_ours() { # run_ours NAME SHAPE DTYPE
	local layers width heads vocab batch
	read -r layers width heads vocab batch < <(shape "$2")
	tokens "$vocab" "$WORK/$2.bin"
	rm -f "$WORK/$1.json"
	mpirun -np "$RANKS" --bind-to core "$TOP/bin/fsdp-train" \
		--layers "$layers" --width "$width" --heads "$heads" --vocab "$vocab" \
		--batch "$batch" --seq 256 --micro-batches "$RANKS" --threads 1 --dtype "$3" \
		--strategy full --lr 3e-4 --valid 0 --steps $((STEPS + 1)) --quiet \
		--log "$WORK/$1.json" "$WORK/$2.bin" </dev/null >"$WORK/$1.out" 2>&1 || {
		local rc=$?
		tail -n 20 "$WORK/$1.out" >&2
		die "$rc" "fsdp-train ended with $rc; see $WORK/$1.out"
	}
}

run_torch() { # run_torch NAME SHAPE DTYPE: its one line in NAME.txt
	local layers width heads vocab batch rank pids=() rc=0 port=$((20000 + RANDOM % 10000))
	read -r layers width heads vocab batch < <(shape "$2")
	for ((rank = 0; rank < RANKS; rank++)); do
		RANK=$rank WORLD_SIZE=$RANKS MASTER_ADDR=127.0.0.1 MASTER_PORT=$port OMP_NUM_THREADS=1 \
			taskset -c "$(core "$rank")" "$TORCH" scripts/bench-torch-gpt.py --dtype "$3" \
			--layers "$layers" --width "$width" --heads "$heads" --vocab "$vocab" \
			--batch "$batch" --seq 256 --steps "$STEPS" </dev/null \
			>"$WORK/$1.$rank.txt" 2>"$WORK/$1.$rank.err" &
		pids+=($!)
	done
	for pid in "${pids[@]}"; do wait "$pid" || rc=$?; done
	((rc == 0)) || { tail -n 5 "$WORK/$1".*.err >&2 && die 2 "torch ended with $rc"; }
	mv "$WORK/$1.0.txt" "$WORK/$1.txt"
}

report() { # all runs, as one table
	perl - "$WORK" "${RUNS[@]}" <<'END'
use strict;
use warnings;
use JSON::PP;

my ($dir, @runs) = @ARGV;

sub median { my @v = sort { $a <=> $b } @_; $v[@v / 2] }

printf "\n%-6s %-5s %10s %9s %9s %10s | %9s %10s %6s %7s\n", qw(shape dtype tokens/s step
	ours resident torch resident rate memory);
my @where;
for my $run (@runs) {
	my ($shape, $dtype) = split /-/, $run;
	open my $f, '<', "$dir/$run.json" or die "$run: $!";
	my (@steps, $end);
	while (<$f>) {
		my $e = decode_json($_);
		push @steps, $e if $e->{event} eq 'step';
		$end = $e if $e->{event} eq 'end';
	}
	shift @steps;
	my $rate = median(map { $_->{tokens_per_second} } @steps);
	my $resident = $end->{resident_peak_bytes} / 2**20;
	my $torch = '';
	if (open my $t, '<', "$dir/torch-$run.txt") {
		my %v = map { split /=/ } split ' ', <$t>;
		$torch = sprintf '%9.0f %6.0f MiB %6.2f %7.2f', $v{tokens_per_second}, $v{resident_mib},
			$rate / $v{tokens_per_second}, $resident / $v{resident_mib};
	}
	printf "%-6s %-5s %10.0f %7.3f s %5.0f MiB %6.0f MiB | %s\n", $shape, $dtype, $rate,
		median(map { $_->{seconds} } @steps), $end->{memory_peak} / 2**20, $resident, $torch;
	my $all = 0;
	$all += $_->{seconds} for @steps;
	push @where, [$run, map { my $k = $_; my $s = 0; $s += $_->{$k} for @steps; 100 * $s / $all }
		qw(compute_seconds exposed_seconds optimizer_seconds data_seconds)];
}
print "\nours: what the library allocated; resident: peak of the process; rate, memory: ours / torch\n";
printf "\n%-12s %9s %9s %9s %9s %9s  %% of the time of a step\n", 'where',
	qw(compute exposed optimizer data other);
for (@where) {
	my ($run, @p) = @$_;
	my $other = 100;
	$other -= $_ for @p;
	printf "%-12s %9.1f %9.1f %9.1f %9.1f %9.1f\n", $run, @p, $other;
}
END
}

main() {
	local shapes=() dtypes=() s d
	WORK='' RUNS=()
	while (($#)); do
		[[ $1 != @(-h|--help) ]] || { usage && exit; }
		(($# > 1)) || die 64 "$1 needs a value"
		case $1 in
		--torch) TORCH=$2 ;;
		--steps) STEPS=$2 ;;
		--shape) shapes+=("$2") ;;
		--dtype) dtypes+=("$2") ;;
		--keep) WORK=$2 ;;
		*) die 64 "'$1'? (see ./dev bench train --help)" ;;
		esac
		shift 2
	done
	[[ $STEPS =~ ^[1-9][0-9]*$ ]] || die 64 "--steps takes a number, not '$STEPS'"
	[[ -x bin/fsdp-train ]] || die 69 'bin/fsdp-train is not built: ./dev build'
	[[ -z $TORCH ]] || "$TORCH" -c 'import torch' || die 69 "$TORCH cannot import torch"
	if [[ -z $WORK ]]; then
		WORK=$(mktemp -d /tmp/fsdp-bench.XXXXXX)
		trap 'rm -rf "$WORK"' EXIT
	fi
	mkdir -p "$WORK"
	export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
	echo "$(env -u OMP_NUM_THREADS nproc) cores: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
	for s in "${shapes[@]:-${SHAPES[@]}}"; do
		for d in "${dtypes[@]:-${DTYPES[@]}}"; do
			shape "$s" >/dev/null
			echo "measuring $s $d"
			run_ours "$s-$d" "$s" "$d"
			[[ -z $TORCH ]] || run_torch "torch-$s-$d" "$s" "$d"
			RUNS+=("$s-$d")
		done
	done
	report
}

main "$@"
