/*
 * The memory limit of a control group: containers and batch systems may give a job less than the
 * machine has.
 */
#ifndef FM_CGROUP_H
#define FM_CGROUP_H

#include <stdint.h>

/*
 * The lowest limit, in bytes, of this process's group and its ancestors; UINT64_MAX: no
 * limit.  `groups` is /proc/self/cgroup, `root` the mount point of the groups, /sys/fs/cgroup.  A
 * group that is not visible, as in a container, is skipped.
 *
 * Source: cgroups(7); memory.max of version 2, memory.limit_in_bytes of version 1.
 */
uint64_t fm_cgroup_memory(const char *groups, const char *root);

#endif
