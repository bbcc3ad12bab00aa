#!/bin/sh

test_description='checkpoints of FSDP1, accelerate and verl, from format to format and back'

. "$SHARNESS_SH"

test_have_prereq SAMPLES || skip_all 'no checkpoints of other tools'

chain_all fsdp1 accel verl

test_expect_success 'refused: nothing' '
	touch refused && cat refused &&
	! grep -v "^$" refused
'

test_done
