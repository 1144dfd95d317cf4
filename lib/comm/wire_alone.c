/*
 * The implementation for a process that is alone.  It lies in the library, so a tool has it unless
 * it is linked with another one.
 */
#include "lib/comm/wire.h"

const struct fm_wire *const fm_wire_linked = NULL;
