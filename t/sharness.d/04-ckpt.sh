# shellcheck shell=sh
# Sourced by sharness.sh: checkpoints to work on, and ways to damage them.

# ckpt_make [OPTION]... DIR: DIR/step-00000100 of a small GPT-2, as 4 ranks
# write it (t/ckpt-make --help).
ckpt_make() {
	run_timeout 60 "$FSDP_BUILDDIR/t/ckpt-make" "$@"
}

# ckpt_reseal STEP-DIR: make the manifest's sizes and checksums those of the
# files, so that only checks of what they hold can find something.
ckpt_reseal() {
	run_timeout 60 "$FSDP_BUILDDIR/t/ckpt-reseal" "$1"
}

# ckpt_pieces CHECKPOINT TENSOR: "FIRST COUNT FILE OFFSET" of each piece.
ckpt_pieces() {
	fsdp-ls -l "$1" "$2" | sed '1,/^TENSOR/d; / is tied to /d' |
		awk 'NF >= 4 { print $(NF - 3), $(NF - 2), $(NF - 1), $NF }'
}

# flip FILE BYTE: change one bit.
# shellcheck disable=SC2059 # the octal number is the text
flip() {
	flip_old=$(od -An -tu1 -j "$2" -N 1 "$1" | tr -d ' ') &&
	printf "\\$(printf %o $((flip_old ^ 1)))" |
		dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

# safetensors FILE HEADER DATA: a file by hand; DATA as for printf.
# shellcheck disable=SC2059 # octal numbers are the text
safetensors() {
	st_size=${#2} &&
	printf "\\$(printf %o $((st_size % 256)))\\$(printf %o \
		$((st_size / 256)))\\0\\0\\0\\0\\0\\0%s" "$2" >"$1" &&
	printf "$3" >>"$1"
}

# line_count N FILE: it has N lines.
line_count() {
	test "$(wc -l <"$2")" = "$1" || {
		echo "$2 has $(wc -l <"$2") lines, not $1:"
		cat "$2"
		return 1
	}
}

# want_torch STATEMENT: prerequisite TORCH, if the Python $FSDP_TORCH_PYTHON can
# do that.
want_torch() {
	: "${FSDP_TORCH_PYTHON:=python3}"
	"$FSDP_TORCH_PYTHON" -c "$1" 2>/dev/null && test_set_prereq TORCH
}
