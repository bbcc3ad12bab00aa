libfsdpcore_la_SOURCES += \
	lib/shard/kernels.c \
	lib/shard/kernels.h \
	lib/shard/sum_tree.c \
	lib/shard/sum_tree.h
