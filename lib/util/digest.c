#include "config.h"

#include "lib/util/digest.h"
