/*
 * The argument of an option: parsed strictly and exactly, whatever the locale.
 */
#ifndef FM_VALUE_H
#define FM_VALUE_H

#include "cmd/cli.h"

/* Store text (NULL for a flag) in *option->value; false where it is not such a value. */
bool fm_value_parse(const struct fm_cli_option *option, const char *text);

/* What would have been right: "use a size such as 4GiB, 23.4GB or 512M". */
void fm_value_explain(char *text, size_t size, const struct fm_cli_option *option);

#endif
