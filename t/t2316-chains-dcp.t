#!/bin/sh

test_description='distributed checkpoints of PyTorch, from format to format and back'

. "$SHARNESS_SH"

test_have_prereq SAMPLES || skip_all 'no checkpoints of other tools'

for name in $(samples dcp); do
	test_expect_success "$name" '
		chain $name "hdf5 --world 3" safetensors "dcp --world 2" \
			torch hdf5-file "dcp --world 5" \
			"safetensors --shard-size 2K" \
			"hdf5 --world 4 --strategy hybrid:2 --files 2" \
			torch "hdf5 --world 7 --strategy grad-op"
	'
done

test_expect_success 'refused: complex numbers of 128 bits by safetensors, tensors in values by dcp' '
	touch refused && cat refused &&
	! grep -v -e "^safetensors: tensor .* (c128) cannot be written" \
		-e "^dcp: value .* holds tensors or objects that cannot" refused
'

test_done
