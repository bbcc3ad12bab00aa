#!/bin/sh

test_description='command lines of the checkpoint tools'

. "$SHARNESS_SH"

tools='ls verify diff convert reshard consolidate prune latest'

# wrong PATTERN COMMAND...: wrong usage: 64, nothing on stdout, and on stderr
# a line that fits, and where to look.
wrong() {
	pattern=$1
	shift
	expect_code 64 run_timeout 20 "$@" >out 2>err || return 1
	test_must_be_empty out &&
	# argp breaks long lines.
	tr "\n" " " <err | sed "s/ Try /\nTry /; s/ $//" >lines &&
	head -n 1 lines | grep "^$1: $pattern" &&
	tail -n 1 lines | grep \
		"^Try .$1 --help. or .$1 --usage. for more information.$"
}

for t in $tools; do
	test_expect_success "fsdp-$t: help and version on stdout, 0" '
		fsdp-$t --help >out 2>err && test_must_be_empty err &&
		grep "^Usage: fsdp-$t \[OPTION...\] [A-Z]" out &&
		grep "^Exit status is 0 if " out &&
		fsdp-$t --version >out 2>err && test_must_be_empty err &&
		grep "^fsdp-$t (libfsdp) [0-9]*\.[0-9]*\.[0-9]*$" out &&
		fsdp-$t --usage >out 2>err && test_must_be_empty err && test -s out
	'
	test_expect_success "fsdp-$t: wrong usage is 64, and says where to look" '
		wrong "unrecognized option .--nonsense.$" fsdp-$t --nonsense &&
		wrong ".* needed$" fsdp-$t &&
		wrong ".*requires an argument$" fsdp-$t a b --max-mem &&
		wrong "the number of threads must be a whole number, not .x.$" \
			fsdp-$t -j x a b &&
		wrong "the number of threads must be from 1 to 1024, not 0$" \
			fsdp-$t -j 0 a b &&
		wrong "the size of buffers must be a size such as .*, not .1Q.$" \
			fsdp-$t --max-mem 1Q a b &&
		wrong "the size of buffers must be at least 1048576 bytes" \
			fsdp-$t --max-mem 1K a b &&
		fsdp-$t --help >out && for o in jobs max-mem json progress quiet; do
			grep -e "--$o\b" out >/dev/null || return 1
		done
	'
done

test_expect_success 'numbers that are none' '
	for n in -1 "" " 1" 1x 0x10 99999999999999999999999; do
		wrong "the number of ranks must be " fsdp-reshard -w "$n" a b || return 1
	done &&
	for n in -1 x "" nan 1e400; do
		wrong "the relative tolerance must be " fsdp-diff --rtol="$n" a b || return 1
	done
'

test_expect_success 'what belongs to one program' '
	wrong "more than two checkpoints$" fsdp-diff a b c &&
	wrong "more than one checkpoint$" fsdp-verify a b &&
	wrong "more than a source and a target$" fsdp-convert a b c &&
	wrong "the target.s name is empty$" fsdp-convert a "" &&
	wrong ".*--long and --stats" fsdp-ls -l --stats a &&
	wrong "--world or --strategy is needed$" fsdp-reshard a b &&
	wrong "unrecognized option .--to" fsdp-reshard --to hdf5 a b &&
	wrong "hdf5 is sharded: " fsdp-consolidate --to hdf5 a b &&
	wrong "--all and --only do not go together$" \
		fsdp-consolidate --all --only optim a b &&
	wrong "the format must be hdf5, hdf5-file, safetensors, dcp, dcp-hf, torch, universal or llmc, not .zip.$" \
		fsdp-convert --to zip a b &&
	wrong "the type to cast to must be f32, bf16, f16 or f64, not .i8.$" \
		fsdp-convert --cast i8 a b &&
	wrong ".*half.*" fsdp-convert --strategy half a b &&
	wrong ".*hybrid:0.*" fsdp-convert --strategy hybrid:0 a b &&
	wrong ".x. is no FROM=TO" fsdp-convert --rename x a b &&
	wrong ".a\*=b. is no FROM=TO" fsdp-convert --rename "a*=b" a b
'

test_done
