/*
 * What a command that reads a stranger's bundle or export may open: what its command line names,
 * and what belongs to that.  formats/file/sandbox.h says what the kernel enforces.
 *
 *   - A file, with its signature beside it and the other parts of a bundle in parts.
 *   - A directory with everything below; of a snapshot in a Hugging Face cache also the blobs of
 *     its repository; of links in it those to files that end in .safetensors or .json.
 *   - The directory of each output, to write and to read: an output is created there under another
 *     name, read again for its digests, and renamed.
 *   - The directory of temporary files, where a pipe is read.
 */
#ifndef FM_CONFINE_H
#define FM_CONFINE_H

#include <stdbool.h>

#include "lib/run/guard.h"

/*
 * Confine the process for good, before any other thread exists.  `rewrites`: the operand, or the
 * signature beside it, is written too.  Returns true if only these files can be opened from now on.
 */
bool fm_confine(const struct fm_guard *guard, bool rewrites);

#endif
