libfsdpcore_la_SOURCES += \
	lib/job/hostlist.c \
	lib/job/hostlist.h \
	lib/job/job.c \
	lib/job/job.h \
	lib/job/launch.c \
	lib/job/launch.h \
	lib/job/peers.c \
	lib/job/peers.h
# End of libfsdpcore_la_SOURCES
