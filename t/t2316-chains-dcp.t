#!/bin/sh

test_description='distributed checkpoints of PyTorch, from format to format and back'

. "$SHARNESS_SH"

test_have_prereq SAMPLES || skip_all 'no checkpoints of other tools'

chain_all dcp

test_expect_success 'refused: complex numbers of 128 bits by safetensors, tensors in values by dcp' '
	touch refused && cat refused &&
	! grep -v -e "^safetensors: tensor .* (c128) cannot be written" \
		-e "^dcp: value .* holds tensors or objects that cannot" refused
'

test_done
