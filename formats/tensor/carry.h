/*
 * Which files of a checkpoint directory are carried into the stage stream, the bundle and every
 * export: what a runtime needs besides the weights, and what the author asks to keep with them:
 *
 *     configs             config.json, *_config.json, configuration.json, params.json
 *     tokenizers          tokenizer.*, *_tokenizer.model, tekken.json, vocab.*, merges.txt,
 *                         added_tokens.json, special_tokens_map.json, spiece.model,
 *                         sentencepiece*.model, *.tiktoken, tiktoken.model, *.spm
 *     chat templates      *.jinja, chat_template.json
 *     licences, readme    *license*, *licence*, *notice*, copying*, *copyright*, *use_policy*,
 *                         *use-policy*, readme*; in any case
 *     code                *.py: what auto_map names.  It is carried, never run, and exported only
 *                         if the user asks for it (lib/export/trust.h)
 *
 * Everything else, calibration data in particular, is not carried unless one of the user's patterns
 * matches it.  A link is followed to a file of the directory itself and, from a snapshot of a
 * Hugging Face cache (models--NAME/snapshots/REVISION), to a blob of the same repository
 * (models--NAME/blobs/DIGEST).  Any other link is refused unless one of the user's patterns matches
 * it, so that a checkpoint cannot make exports contain other files of this machine, such as those
 * of a private model in the same cache.
 */
#ifndef FM_CARRY_H
#define FM_CARRY_H

#include "formats/tensor/hfdir.h"

#define FM_CARRY_PATTERNS_MAX 16 /* limit of the --carry options of a command */

/*
 * Fill dir->carried, with the bytes of each file, and dir->left, both sorted by name.  dir->carried
 * has at most FM_CARRIED_MAX files with FM_CARRIED_BYTES_MAX bytes together. pattern: additional
 * names as patterns of fnmatch(3), ended by NULL; or NULL. Directories, and names that
 * formats/file/carried.h refuses (hidden files and weights among them), are never carried.  FM_EIO:
 * a file that a tool may have read since fm_hfdir_open has changed, so that the stream would have
 * another one than was used.  FM_ECONFIG: too many files, or a link out of the checkpoint.
 * FM_EUSAGE: a pattern that matches no file of the directory.
 */
int fm_carry_list(struct fm_hfdir *dir, const char *const *pattern, struct fm_err *err);

#endif
