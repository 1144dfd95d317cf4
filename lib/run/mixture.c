/*
 * The next sequence comes from the source that is furthest behind its share.  In integers, so that
 * the same order comes out everywhere, and online, so that a mixture can be cut anywhere and is
 * still in proportion.
 */
