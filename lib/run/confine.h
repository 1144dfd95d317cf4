/*
 * Confines a command that reads an untrusted bundle or export to the files that its command line
 * names and those that belong to them.  formats/file/sandbox.h describes what the kernel enforces.
 * A command may open:
 *
 * - A file, its signature next to it, and the other parts of a bundle in parts.
 *
 * - A directory with everything below it; for a snapshot in a Hugging Face cache also the blobs of
 * its repository; for links in it, targets that end in .safetensors or .json.
 *
 * - The directory of each output, for reading and writing: an output is created there under a
 * temporary name, read again for its digests, and renamed.
 *
 * - The directory of temporary files, where the contents of a pipe are kept.
 *
 * Of the descriptors that it inherited it keeps standard input, output and error, and those that
 * the command line names (/dev/fd/3).
 */
#ifndef FM_CONFINE_H
#define FM_CONFINE_H

#include <stdbool.h>

#include "lib/run/guard.h"

/*
 * Confine the process permanently, before any other thread exists.  `descriptor`: one that an
 * option names by number, -1 for none.  `rewrites`: the command also writes its operand, or a file
 * in or next to it.  *files, which is set even on failure, says whether only the files above can be
 * opened from now on.  FM_EIO or similar if a directory that is read cannot be listed completely.
 */
int fm_confine(const struct fm_guard *guard, int descriptor, bool rewrites, bool *files,
               struct fm_err *err);

#endif
