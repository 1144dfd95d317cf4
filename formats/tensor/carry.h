/*
 * Which files of a checkpoint directory travel along: into the stage stream, the bundle and every
 * export.  What a runtime needs beside the weights, and what the author asks to keep with them:
 *
 *     configs             config.json, *_config.json, configuration.json, params.json
 *     tokenizers          tokenizer.*, tekken.json, vocab.*, merges.txt, added_tokens.json,
 *                         special_tokens_map.json, spiece.model, sentencepiece*.model, *.tiktoken
 *     chat templates      *.jinja, chat_template.json
 *     licences, readme    LICENSE*, LICENCE*, NOTICE*, COPYING*, USE_POLICY*, README*
 *     code                *.py: what auto_map names.  It is carried, never run, and exported only
 *                         where the user asks for it (lib/export/trust.h)
 *
 * Everything else stays behind, calibration data above all, unless a pattern of the user names it.
 * A link is followed to a file of the directory itself and, from a snapshot of a Hugging Face cache
 * (models--NAME/snapshots/REVISION), to a blob of the same repository (models--NAME/blobs/DIGEST).
 * Any other link is refused, so that a checkpoint cannot have a secret of this machine carried
 * away, be it a file of a private model in the same cache; unless a pattern of the user names the
 * link.
 */
#ifndef FM_CARRY_H
#define FM_CARRY_H

#include "formats/tensor/hfdir.h"

#define FM_CARRY_PATTERNS_MAX 16 /* as many as an option may be given times */

/*
 * Fill dir->carried, sorted by name: at most FM_CARRIED_MAX files, FM_CARRIED_BYTES_MAX together.
 * pattern: further names, as fnmatch(3) has them, NULL behind the last; NULL: none.  Names that
 * formats/file/carried.h refuses, hidden files and weights among them, and directories never
 * travel. FM_ECONFIG: too many, or a link out of the checkpoint.  FM_EUSAGE: a pattern that no file
 * of the directory has.
 */
int fm_carry_list(struct fm_hfdir *dir, const char *const *pattern, struct fm_err *err);

#endif
