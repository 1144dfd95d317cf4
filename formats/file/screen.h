/*
 * Tests whether standard output is a terminal that would display binary data.  A pseudoterminal of
 * an MPI launcher is not: its data goes to the launcher's own standard output.
 */
#ifndef FM_SCREEN_H
#define FM_SCREEN_H

#include <stdbool.h>

/* True if standard output is a terminal that displays what is written. */
bool fm_screen_is_output(void);

/* If standard output is a terminal, turn off its output processing (OPOST). */
void fm_screen_pass(void);

#endif
