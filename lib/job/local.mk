libfsdpcore_la_SOURCES += lib/job/job.h
