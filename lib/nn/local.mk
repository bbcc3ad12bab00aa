# The model kit uses nothing but fsdp.h and util; fsdp-train links it.
noinst_LTLIBRARIES += libnn.la

libnn_la_SOURCES = \
	lib/nn/data.h \
	lib/nn/gpt2.h
# End of libnn_la_SOURCES

libnn_la_CPPFLAGS = $(AM_CPPFLAGS) $(DNNL_CFLAGS) $(JANSSON_CFLAGS)
libnn_la_LIBADD = $(DNNL_LIBS) $(JANSSON_LIBS) -lpthread -lm
