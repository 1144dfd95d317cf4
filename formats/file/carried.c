/*
 * The rule for files that are carried with a checkpoint.  The same rule applies when a directory is
 * listed and when a bundle is written or read, so no name is refused in one place and accepted in
 * another.
 */
#include "formats/file/carried.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "lib/base/names.h"

bool fm_carried_is_weights(const char *name)
{
    static const char *const tails[] = {".safetensors", ".bin",  ".pt",       ".pth",
                                        ".ckpt",        ".gguf", ".h5",       ".msgpack",
                                        ".onnx",        ".ot",   "index.json"};
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++)
        if (fm_ends_with(name, tails[i]))
            return true;
    return strncmp(name, "consolidated.", 13) == 0;
}

const char *fm_carried_refuse(const char *name)
{
    static const char harmless[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t n = strlen(name);
    if (n == 0 || n > FM_CARRIED_NAME_MAX)
        return "its name is not 1 to 90 bytes long";
    if (strspn(name, harmless) != n)
        return "its name has characters other than letters, digits, '.', '_' and '-'";
    if (name[0] == '.')
        return "it is hidden";
    return fm_carried_is_weights(name) ? "it is a weight file" : NULL;
}

int fm_carried_add(struct fm_carried_sum *sum, const char *name, uint64_t size, struct fm_err *err)
{
    const char *why = fm_carried_refuse(name);
    assert(sum->files <= FM_CARRIED_MAX && sum->bytes <= FM_CARRIED_BYTES_MAX);
    if (why)
        return fm_fail(err, FM_ECONFIG, "'%s' cannot be copied: %s", name, why);
    if (sum->files == FM_CARRIED_MAX || size > FM_CARRIED_BYTES_MAX - sum->bytes)
        return fm_fail(err, FM_ECONFIG,
                       "'%s' is one file too many to copy (limits %d files, %" PRIu64
                       " bytes); remove what is not needed",
                       name, FM_CARRIED_MAX, FM_CARRIED_BYTES_MAX);
    sum->files++;
    sum->bytes += size;
    return FM_OK;
}
