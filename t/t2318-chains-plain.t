#!/bin/sh

test_description='files of torch.save and safetensors, from format to format and back'

. "$SHARNESS_SH"

test_have_prereq SAMPLES || skip_all 'no checkpoints of other tools'

chain_all plain hf st safetensors

test_expect_success 'refused: complex numbers of 128 bits by safetensors, small floats by PyTorch' '
	touch refused && cat refused &&
	! grep -v -e "^safetensors: tensor .* (c128) cannot be written" \
		-e "PyTorch has no tensors of type f[46]" refused
'

test_done
