#!/bin/bash
# demo.sh - the main job, end to end, on a private Slurm cluster: ./dev demo
#
# Everything is real: sbatch, srun with PMIx, MPI between network namespaces,
# English text that a Debian package ships.  All that it writes, job scripts
# and logs included, stays in one directory.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
TOP=$PWD

# A model of 2.7 million parameters; how two cores train it in a minute or two.
# 12 micro-batches a step are dealt evenly to 1, 2, 3, 4, 6 or 12 ranks, and
# unevenly to any other number.
MODEL=(--layers 6 --width 192 --heads 6 --seq 128)
TRAIN=(--micro-batches 12 --batch 1 --lr 2e-3 --warmup 20 --seed 1)
STEPS=180
TEXT_DIR=/usr/share/games/fortunes # Debian: fortunes
PYTHON=/usr/bin/python3            # Debian's, which has h5py

usage() {
	cat <<END
usage: ./dev demo [--dir DIR] [--text FILE]... [--steps N]

  --dir DIR    where its files and job scripts go (default: demo/DATE-XXXX)
  --text FILE  train on this text (default: the fortunes of Debian)
  --steps N    of the run that never stops, a multiple of 3 (default: $STEPS);
               the others resume after two thirds
END
}

die() { # die STATUS TEXT
	echo "demo: $2" >&2
	exit "$1"
}

# --- Showing what happens

heading() { # heading TITLE
	NUMBER=$((NUMBER + 1)) TITLE=$1
	LOG=$DIR/log/$NUMBER.log
	printf '\n== %d. %s  [%d s]\n' "$NUMBER" "$TITLE" $((SECONDS - BEGIN))
}

short() { sed -e "s|$DIR/||g" -e "s|$TOP/||g"; } # paths as a person would say them

run() { # run COMMAND...: show it and the first lines of what it prints
	local arg line='$'
	for arg; do
		[[ $arg == *[\ \&\;]* ]] && line+=" '$arg'" || line+=" $arg"
	done
	short <<<"$line"
	"$@" </dev/null 2>&1 | tee -a "$LOG" | short |
		awk -v most="${SHOW:-12}" '
			NR <= most { print "    " $0 }
			END { if (NR > most) print "    ... " NR - most " lines more" }'
}

checked() { # checked TEXT: a line here, and one at the end
	echo "  ok: $1"
	CHECKED+=("$1")
}

finish() {
	local rc=$?
	trap - EXIT HUP INT TERM
	[[ -z $STAND_IN ]] || kill "$STAND_IN" 2>/dev/null || true
	if [[ -n $CLUSTER ]]; then
		slurm/cluster down -d "$CLUSTER" >/dev/null ||
			echo "demo: could not stop the cluster in $CLUSTER" >&2
		cp -r "$CLUSTER/log" "$DIR/log/cluster" 2>/dev/null || true
		rm -rf "$CLUSTER"
	fi
	if ((rc)); then
		{
			echo "demo: step $NUMBER, $TITLE: failed with status $rc"
			[[ ! -s $LOG ]] || { echo "demo: the end of $LOG:" && tail -n 15 "$LOG"; }
			[[ ! -d $DIR/log/cluster ]] || echo "demo: logs of the cluster: $DIR/log/cluster"
		} >&2
	fi
	exit "$rc"
}

# --- Jobs

in_cluster() { slurm/cluster run -d "$CLUSTER" "$@"; }

write_job() { # write_job NAME NODES RANKS ARG...: a job script, from the template
	local name=$1 nodes=$2 ranks=$3 tasks=$((($3 + $2 - 1) / $2))
	shift 3
	{
		sed -e '/^# A training job/,/^# Copy it/d' -e '/^exec srun/,$d' \
			-e "s/^\(#SBATCH --job-name=\).*/\1$name/" \
			-e "s/^\(#SBATCH --nodes=\).*/\1$nodes/" \
			-e "s/^\(#SBATCH --ntasks-per-node=\).*/\1$tasks/" \
			-e "s|^\(#SBATCH --output=\).*|\1log/$name.log|" slurm/train.sbatch
		# shellcheck disable=SC2016 # $PATH is that of the job
		printf 'export PATH=%q:$PATH\n' "$TOP/bin"
		printf 'exec srun --mpi=pmix -K1 -N %d -n %d fsdp-train' "$nodes" "$ranks"
		printf ' \\\n    %q' --log "log/$name.json" "$@"
		echo
	} >"$DIR/$name.sbatch"
}

run_job() { # run_job NAME: submit it, show its log as it grows, take its status
	local name=$1 id job state shower
	LOG=$DIR/log/$name.log
	: >"$LOG"
	printf '$ sbatch %s\n' "$name.sbatch"
	id=$(in_cluster sbatch --parsable -D "$DIR" "$DIR/$name.sbatch" </dev/null)
	# While a stand-in lives: then tail shows the rest, and ends.
	sleep 1h &
	STAND_IN=$!
	tail -n +1 -s 0.2 --pid "$STAND_IN" -f "$LOG" | awk '
		$1 ~ /^[0-9]+$/ && $1 > 3 && $1 % 10 { next }
		{ print "    " $0; fflush() }' &
	shower=$!
	while
		sleep 0.5
		job=$(in_cluster scontrol -o show job "$id")
		state=$(sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p' <<<"$job")
		[[ $state == @(PENDING|CONFIGURING|RUNNING|COMPLETING) ]]
	do :; done
	kill "$STAND_IN"
	STAND_IN=
	wait "$shower"
	[[ $state == COMPLETED ]] && return
	state+=", $(sed -n 's/.*\(ExitCode=[0-9:]*\).*/\1/p' <<<"$job")"
	echo "demo: job $name ($id): $state" >&2
	return "$(sed -n 's/.*ExitCode=\([0-9]*\):.*/\1/p' <<<"$job" | sed 's/^0$/1/')"
}

# --- What the programs' JSON says

json() { # json NAME EXPRESSION: of the log of a job; of(K) is the list of events K
	"$PYTHON" -c '
import json, sys
events = [json.loads(line) for line in open(sys.argv[1])]
of = lambda kind: [e for e in events if e["event"] == kind]
print(eval(sys.argv[2]))' "$DIR/log/$1.json" "$2"
}

losses() { # losses NAME FIRST: step, loss and norm from step FIRST on, all bits
	json "$1" '"\n".join(" ".join(map(str, (e["step"], e["loss_hex"], e["norm_hex"])))
		for e in of("step") if e["step"] >= '"$2"')'
}

same_losses() { # same_losses NAME FIRST WHAT: as the run that never stopped
	losses train "$2" >"$DIR/log/losses-train.txt"
	losses "$1" "$2" >"$DIR/log/losses-$1.txt"
	run cmp "$DIR/log/losses-train.txt" "$DIR/log/losses-$1.txt"
	checked "$3: $(wc -l <"$DIR/log/losses-$1.txt") losses and gradient norms, the same bits"
}

size() { du -sbL "$1" | awk '{ printf "%.1f MB", $1 / 1e6 }'; }

# --- The steps of the demo

build() {
	heading 'Packages and programs'
	SHOW=40 run ./dev build
	export PATH=$TOP/bin:$PATH
}

collect_text() {
	heading 'The text'
	if ((!${#TEXTS[@]})); then
		mapfile -t TEXTS < <(find "$TEXT_DIR" -maxdepth 1 -type f ! -name '*.*' | LC_ALL=C sort)
		((${#TEXTS[@]})) || die 65 "no text in $TEXT_DIR (Debian: fortunes)"
	fi
	cat -- "${TEXTS[@]}" >"$DIR/text.txt" || die 65 'cannot read the text'
	echo "  ${#TEXTS[@]} files, $(stat -c %s "$DIR/text.txt") bytes, in text.txt; it begins:"
	head -n 4 "$DIR/text.txt" | cut -c 1-76 | sed 's/^/    | /'
}

start_cluster() {
	heading 'A private Slurm cluster: two nodes of two CPUs'
	CLUSTER=$(mktemp -d /tmp/fsdp-demo.XXXXXX) # short, for names of sockets
	run slurm/cluster up -d "$CLUSTER" -n 2 -c 2 -o SlurmdTimeout=60
	run in_cluster sinfo -N
}

train() {
	local entropy loss
	heading 'Train: 2 nodes x 2 ranks, strategy full; save while training'
	write_job train 2 4 "${MODEL[@]}" "${TRAIN[@]}" --steps "$STEPS" --strategy full \
		--valid "$THIRD" --save ckpt --save-every "$THIRD" text.txt
	run_job train
	entropy=$(json train 'of("start")[0]["order0_entropy"]')
	loss=$(json train 'of("valid")[-1]["loss"]')
	awk -v a="$loss" -v b="$entropy" 'BEGIN { exit !(a < b - 0.5) }' ||
		die 1 "validation loss $loss is not well below the entropy $entropy"
	checked "$(printf 'validation loss %.3f, order-0 entropy %.3f nats' "$loss" "$entropy")"
	json train '"\n".join("  step %d: trained on after %.3f s, durable after %.2f s" %
		(e["step"], e["copy_seconds"], e["total_seconds"]) for e in of("saved"))'
}

look() {
	heading 'What is in a checkpoint, and is it sound?'
	run fsdp-ls "$FROM"
	run fsdp-verify "$FROM"
	checked 'fsdp-verify: every byte and every coverage rule'
}

reshard() {
	local from=$FROM to
	heading 'Reshard: 4 ranks full -> 2 hybrid -> 3 grad-op -> 1'
	mkdir "$DIR/reshard"
	while read -r to options; do
		# shellcheck disable=SC2086 # several words
		run fsdp-reshard $options "$from" "$DIR/reshard/$to"
		from=$DIR/reshard/$to
	done <<-'END'
		2-hybrid --world 2 --strategy hybrid:1
		3-grad-op --world 3 --strategy grad-op
		1-full --world 1 --strategy full
	END
	for to in "$DIR"/reshard/*; do
		run fsdp-verify --quiet "$to"
		run fsdp-diff "$FROM" "$to"
	done
	checked 'fsdp-diff: original and three reshardings hold the same values'
}

resume() { # resume NAME NODES RANKS STRATEGY CHECKPOINT WHAT
	local last nodes="$2 nodes"
	[[ $2 != 1 ]] || nodes='one node'
	last=$(printf 'step-%08d' "$STEPS")
	heading "Resume $6: $3 ranks on $nodes, strategy $4"
	write_job "$1" "$2" "$3" --resume "${5#"$DIR"/}" --steps "$STEPS" --strategy "$4" \
		--valid "$THIRD" --save "ckpt-$1" text.txt
	run_job "$1"
	same_losses "$1" $((THIRD * 2 + 1)) "resumed on $3 ranks, $4"
	run fsdp-diff "$DIR/ckpt/$last" "$DIR/ckpt-$1/$last"
	checked "resumed on $3 ranks, $4: final parameters and moments, the same bits"
}

consolidate() {
	heading 'Consolidate for other programs'
	run fsdp-consolidate "$DIR/ckpt" "$DIR/model.h5"
	run fsdp-consolidate "$DIR/ckpt" "$DIR/model"
	run h5dump -n "$DIR/model.h5"
	run h5dump -d /transformer.ln_f.weight -c 6 "$DIR/model.h5"
	run "$PYTHON" scripts/read-safetensors.py "$DIR/model/model.safetensors"
	run cat "$DIR/model/config.json"
	run "$PYTHON" scripts/compare-h5.py "$DIR/model.h5" "$DIR/model/model.safetensors"
	checked 'h5dump, h5py and a plain safetensors reader read the model, with the same values'
}

sample() {
	heading 'Write text'
	SHOW=30 run fsdp-train --init-from "$DIR/model" --sample 'The ' --tokens 400 --seed 7
}

# --- The end

summary() {
	local name c
	heading 'Done'
	printf '  %-10s %6s %9s %6s %10s %10s %9s %10s\n' job ranks strategy steps \
		'last loss' tokens/s exposed memory
	for name in train resharded original; do
		json "$name" '"  %-10s %6d %9s %6d %10.6f %10.0f %8.1f%% %8.1f MB" % ("'"$name"'",
			of("start")[0]["world"], of("start")[0]["strategy"], of("end")[0]["steps"],
			of("step")[-1]["loss"], of("end")[0]["tokens"] / of("end")[0]["seconds"],
			100 * of("end")[0]["exposed_seconds"] / of("end")[0]["seconds"],
			of("end")[0]["memory_peak"] / 1e6)'
	done
	echo
	for c in "$FROM" "$DIR"/reshard/* "$DIR/model.h5" "$DIR/model/model.safetensors"; do
		printf '  %-38s %9s\n' "${c#"$DIR"/}" "$(size "$c")"
	done
	printf '\n  checked:\n'
	printf '  - %s\n' "${CHECKED[@]}"
	cat <<-END

		All is in $DIR:
		  *.sbatch  the jobs; log/  what they printed;  ckpt*/  checkpoints;  model*
		A part again, for example:
		  ./dev cluster up && ./dev cluster run sbatch -D $DIR $DIR/original.sbatch
		  bin/fsdp-ls --stats $FROM
		$((SECONDS - BEGIN)) seconds in all.
	END
}

main() {
	DIR='' TEXTS=() CHECKED=() NUMBER=0 TITLE='' LOG='' CLUSTER='' STAND_IN='' BEGIN=$SECONDS
	while (($#)); do
		case $1 in
		-h | --help) usage && exit ;;
		--dir | --text | --steps) (($# > 1)) || die 64 "$1 needs a value" ;;
		*) die 64 "'$1'? (see ./dev demo --help)" ;;
		esac
		case $1 in
		--dir) DIR=$(realpath -m -- "$2") ;;
		--text) TEXTS+=("$2") ;;
		--steps) STEPS=$2 ;;
		esac
		shift 2
	done
	[[ $STEPS =~ ^[1-9][0-9]*$ ]] || die 64 "--steps takes a number, not '$STEPS'"
	((STEPS % 3 == 0)) || die 64 "--steps takes a multiple of 3, not $STEPS"
	THIRD=$((STEPS / 3))
	if [[ -z $DIR ]]; then
		mkdir -p demo && DIR=$(mktemp -d "$TOP/demo/$(date +%Y%m%d-%H%M%S)-XXXX")
		chmod 755 "$DIR"
	fi
	[[ ! -e $DIR/log ]] || die 64 "$DIR holds a demo already; choose another directory"
	mkdir -p "$DIR/log"
	FROM=$DIR/ckpt/$(printf 'step-%08d' $((THIRD * 2)))

	trap finish EXIT
	trap 'exit 129' HUP
	trap 'exit 130' INT
	trap 'exit 143' TERM
	echo "demo: files and job scripts go to $DIR"
	build
	collect_text
	start_cluster
	train
	look
	reshard
	resume resharded 1 2 hybrid:1 "$DIR/reshard/2-hybrid" 'from the resharded checkpoint'
	resume original 2 3 grad-op "$FROM" 'straight from the original'
	consolidate
	sample
	summary
}

main "$@"
