libfsdpcore_la_SOURCES += \
	lib/shard/counters.c \
	lib/shard/find.c \
	lib/shard/fsdp.c \
	lib/shard/gather.c \
	lib/shard/kernels.c \
	lib/shard/kernels.h \
	lib/shard/load.c \
	lib/shard/memory.c \
	lib/shard/optim.c \
	lib/shard/pool.c \
	lib/shard/pool.h \
	lib/shard/reduce.c \
	lib/shard/save.c \
	lib/shard/schedule.c \
	lib/shard/seal.c \
	lib/shard/shard.h \
	lib/shard/step.c \
	lib/shard/sum_tree.c \
	lib/shard/sum_tree.h \
	lib/shard/whole.c
