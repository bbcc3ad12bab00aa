libfsdpcore_la_SOURCES += \
	lib/job/heartbeat.c \
	lib/job/heartbeat.h \
	lib/job/hostlist.c \
	lib/job/hostlist.h \
	lib/job/job.c \
	lib/job/job.h \
	lib/job/launch.c \
	lib/job/launch.h \
	lib/job/missing.c \
	lib/job/missing.h \
	lib/job/peers.c \
	lib/job/peers.h \
	lib/job/pmix.c \
	lib/job/rendezvous.h
# End of libfsdpcore_la_SOURCES
