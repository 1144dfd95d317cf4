/*
 * Loops in generated texts: the failure that users of a pruned model see first.
 *
 * A text loops if it ends in a repetition: a unit of at most FM_LOOPS_WORDS words, or of at most
 * FM_LOOPS_UNIT characters, repeated at least FM_LOOPS_REPEATS times over at least FM_LOOPS_LENGTH
 * characters.  Words are separated by white space; the last one may be cut, and the repetition may
 * end within a unit, as a text that was cut by a limit of tokens does.  Only the end counts: a
 * table or a refrain within a text is no loop.
 */
#ifndef FM_LOOPS_H
#define FM_LOOPS_H

#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"

#define FM_LOOPS_WORDS 64
#define FM_LOOPS_UNIT 256
#define FM_LOOPS_REPEATS 4
#define FM_LOOPS_LENGTH 128

#define FM_LOOPS_TEXT_MAX (4 << 20) /* bytes of a text */
#define FM_LOOPS_SHOWN 3
#define FM_LOOPS_UNIT_BYTES 64

struct fm_loop {
    uint64_t repeats;        /* whole units at the end; 0: the text does not loop */
    uint64_t characters;     /* in these, and the part of a unit before them */
    size_t unit, unit_bytes; /* where a unit begins, and its size */
};

/* Find the loop at the end of a text, which is UTF-8; FM_ENOMEM.  *different is the share of its
 * sequences of four words that are different; -1 if it has fewer words. */
int fm_loops_find(struct fm_loop *loop, double *different, uint64_t *words, const char *text,
                  size_t size, struct fm_err *err);

/* A file of texts. */
struct fm_loops {
    uint64_t texts, empty, failed; /* failed: rows with an error in place of a text */
    uint64_t words;
    uint64_t told, ended; /* texts whose reason of ending is given; that ended by themselves */
    uint64_t looping;
    uint64_t long_enough; /* texts of at least four words */
    double different;     /* sum of their shares of different sequences of four words */
    struct fm_loops_example {
        uint64_t line, text; /* its line in the file, and its number among the texts, from 1 */
        struct fm_loop loop;
        char unit[FM_LOOPS_UNIT_BYTES]; /* its beginning, printable */
    } worst[FM_LOOPS_SHOWN];            /* with the longest repetitions, in that order */
    int shown;
};

/*
 * Read the texts of a file, or standard input for "-": JSON lines, each with one or more texts in
 * "choices" (of an OpenAI-compatible server), in "choices" of "response" and "body" (of vLLM's
 * run-batch), in "content" (of llama.cpp's server), or in "text" or "generated_text".  Texts are
 * read one after the other.  FM_EFORMAT names the line.
 */
int fm_loops_read(struct fm_loops *l, const char *path, struct fm_err *err);

#endif
