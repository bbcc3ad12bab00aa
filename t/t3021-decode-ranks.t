#!/bin/sh
#
# Ranks as srun would start them, here without Slurm (t3008).
#
test_description='what has to be decoded, by several ranks'

. "$SHARNESS_SH"

: "${PYTHON:=python3}"
have ZSTD || skip_all 'a build without libzstd'
command -v zstd >/dev/null && command -v "$PYTHON" >/dev/null ||
	skip_all 'no program zstd, or no Python'

# each COMMAND...: a rank; what it does to files is in calls.R.
cat >each <<END
#!/bin/sh
exec env LD_PRELOAD='$FAULT_PRELOAD' FSDP_FAULT=count:0 \
	FSDP_FAULT_DIR="\$PWD" FSDP_FAULT_LOG="\$PWD/calls.\$SLURM_PROCID" "\$@"
END
chmod +x each

# compress SOURCE TARGET [OPTION...]: a DCP, compressed.
compress() {
	from=$1 to=$2
	shift 2
	"$PYTHON" "$FSDP_SRCDIR/t/dcp-zstd.py" "$from" "$to" stream.zstd/1 "$@"
}

# calls PATTERN: of each rank, those that fit.
calls() {
	for r in 0 1 2; do
		grep -c "$1" "calls.$r"
	done
}

test_expect_success 'a compressed source' '
	ckpt_make -w 4 --vocab 3000 --width 128 src &&
	fsdp-convert -q --to dcp src plain && compress plain packed &&
	fsdp-diff src packed
'

for spec in "reshard -w 3 --strategy grad-op" \
	"convert --to safetensors" \
	"convert --to hdf5-file --cast bf16" \
	"convert --to dcp --layout dp=1,tp=3 --split *.c_attn.weight=1"; do
	test_expect_success "the bytes of one process: $spec" '
		rm -rf one && set -f && set -- $spec && set +f &&
		tool=fsdp-$1 && shift && $tool -q "$@" packed one &&
		for n in 2 5; do
			rm -rf many && ranks $n $tool "$@" packed many &&
			codes $(yes 0 | head -n $n) && diff -r one many ||
				return 1
		done
	'
done

test_expect_success FAULT 'each rank decodes a part and writes it' '
	rm -rf many && ranks 3 ./each fsdp-reshard -q -w 3 packed many &&
	codes 0 0 0 && fsdp-diff src many && calls "^look.*distcp" >reads &&
	calls "^change pwrite.*shard" >writes &&
	test $(sort -n reads | head -1) -gt 0 &&
	test $(sort -n writes | head -1) -gt 0 &&
	rm -rf many && ranks 1 ./each fsdp-reshard -q -w 3 packed many &&
	all=$(grep -c "^look.*distcp" calls.0) &&
	test $(sort -n reads | tail -1) -lt $((all * 2 / 3))
'

test_expect_success 'one tensor of one record, of which each writes a part' '
	safetensors big.safetensors "{\"w\":{\"dtype\":\"F32\",\"shape\":[1536,1024],\"data_offsets\":[0,6291456]}}" "" &&
	seq 1 1000000 | head -c 6291456 >>big.safetensors &&
	fsdp-convert -q --to dcp big.safetensors whole &&
	compress whole large && ranks 3 fsdp-convert -q --to safetensors large \
		back.safetensors && codes 0 0 0 &&
	fsdp-diff big.safetensors back.safetensors
'

test_expect_success 'a flipped bit is found by the rank that has its bytes' '
	cp -r packed bad && size=$(stat -c %s bad/__3_0.distcp) &&
	flip bad/__3_0.distcp $((size / 2)) && rm -rf many &&
	ranks 3 fsdp-reshard -q -w 3 bad many && codes 65 65 65 &&
	grep __3_0.distcp err.0 && test ! -e many
'

test_expect_success FAULT 'a rank that dies while it decodes is named' '
	cat >dying <<-END &&
	#!/bin/sh
	test "\$SLURM_PROCID" = 2 || exec "\$@"
	exec env LD_PRELOAD="$FAULT_PRELOAD" FSDP_FAULT=kill:9 \
		FSDP_FAULT_DIR="\$PWD" "\$@"
	END
	chmod +x dying &&
	ranks 3 ./dying fsdp-reshard --deadline 5 -w 3 packed many &&
	codes 69 69 137 && grep "from rank 2" err.0 && test ! -e many
'

test_done
