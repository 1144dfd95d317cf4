/* main of every tool: the Makefile compiles it once for each, with FM_MAIN as its function. */
#include "cmd/tools.h"

int main(int argc, char **argv)
{
    return FM_MAIN(argc, argv);
}
