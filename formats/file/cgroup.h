/*
 * The memory that a job may use where it is less than the machine's: control groups limit it in
 * containers and under batch systems.
 */
#ifndef FM_CGROUP_H
#define FM_CGROUP_H

#include <stdint.h>

/*
 * Bytes: the least limit of this process's group and of those above it, UINT64_MAX without one.
 * `groups` is /proc/self/cgroup, `root` where the groups are mounted, /sys/fs/cgroup.  A group that
 * cannot be seen from here, as in a container, is passed over.
 *
 * Source: cgroups(7); memory.max of version 2, memory.limit_in_bytes of version 1.
 */
uint64_t fm_cgroup_memory(const char *groups, const char *root);

#endif
