# Hand-written roff, one page a program or topic.

dist_man_MANS += \
	man/fsdp-consolidate.1 \
	man/fsdp-convert.1 \
	man/fsdp-diff.1 \
	man/fsdp-latest.1 \
	man/fsdp-ls.1 \
	man/fsdp-prune.1 \
	man/fsdp-reshard.1 \
	man/fsdp-rules.5 \
	man/fsdp-verify.1
# End of dist_man_MANS of the checkpoint tools
dist_man_MANS += man/fsdp-train.1
