libfsdpcore_la_SOURCES += lib/device/device.h
