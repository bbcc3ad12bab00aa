# The model kit uses nothing but fsdp.h and util; fsdp-train links it.
noinst_LTLIBRARIES += libnn.la

libnn_la_SOURCES = \
	lib/nn/attention.c \
	lib/nn/attention.h \
	lib/nn/data.c \
	lib/nn/data.h \
	lib/nn/gpt2.c \
	lib/nn/gpt2.h \
	lib/nn/gpt2_block.c \
	lib/nn/gpt2_config.c \
	lib/nn/gpt2_head.c \
	lib/nn/gpt2_private.h \
	lib/nn/layers.c \
	lib/nn/layers.h \
	lib/nn/matmul.c \
	lib/nn/matmul.h \
	lib/nn/matmul_plain.c \
	lib/nn/matmul_private.h \
	lib/nn/vec.h
# End of libnn_la_SOURCES

# Kernels use fused multiply-add where the machine has it: a micro-batch has
# the same bits on the same instruction set, which is all that oneDNN offers.
# GCC's note on vectors as arguments does not concern what is always inlined.
libnn_la_CFLAGS = $(AM_CFLAGS) $(OPENMP_CFLAGS) -ffp-contract=fast -Wno-psabi
libnn_la_CPPFLAGS = $(AM_CPPFLAGS) $(DNNL_CFLAGS) $(JANSSON_CFLAGS)
libnn_la_LIBADD = $(DNNL_LIBS) $(JANSSON_LIBS) $(OPENMP_CFLAGS) -lpthread -lm
