# shellcheck shell=sh
# Sourced by sharness.sh: small training runs, and what their logs say.

# text_make FILE: some real text, from this tree.
text_make() {
	cat "$FSDP_SRCDIR"/man/*.[1-9] "$FSDP_SRCDIR"/README.md \
		"$FSDP_SRCDIR"/doc/*.md "$FSDP_SRCDIR"/lib/fsdp.h >"$1"
}

# tiny ARG...: the options of a model that trains in a moment.
tiny() {
	set -- --layers 2 --width 32 --heads 2 --seq 32 --batch 2 --vocab 256 "$@"
	echo "$@"
}

# losses LOG [FIRST]: step, loss and gradient norm from step FIRST on, all bits.
losses() {
	grep '"event":"step"' "$1" | tr ',' '\n' |
		sed -n 's/^"step":\([0-9]*\).*/step \1/p
			s/^"\(loss_hex\|norm_hex\)":\(.*\)/\1 \2/p' |
		awk -v first="${2:-1}" '$1 == "step" { n = $2 } n >= first'
}

# digests LOG: of parameters and optimizer state at the end.
digests() {
	grep '"event":"end"' "$1" | grep -o '"digest_[a-z]*":"[0-9a-f]*"'
}

# field LOG EVENT KEY: the value of a key in the last such event.
field() {
	grep "\"event\":\"$2\"" "$1" | tail -n 1 |
		sed -n "s/.*\"$3\":\"\{0,1\}\([^,\"}]*\).*/\1/p"
}
