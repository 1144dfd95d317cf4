/*
 * The implementation for a single process.  It is in the library, so a tool uses it unless a
 * different implementation is linked in.
 */
#include "lib/comm/wire.h"

const struct fm_wire *const fm_wire_linked = NULL;
