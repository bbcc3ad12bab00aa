#!/bin/sh

test_description='checkpoints of DeepSpeed, Megatron and llm.c, from format to format and back'

. "$SHARNESS_SH"

test_have_prereq SAMPLES || skip_all 'no checkpoints of other tools'

chain_all ds mcore llmc

test_expect_success 'refused: tensors in values by dcp' '
	touch refused && cat refused &&
	! grep -v -e "^dcp: value .* holds tensors or objects that cannot" refused
'

test_done
