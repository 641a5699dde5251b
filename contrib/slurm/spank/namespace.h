/* Passes the mount namespace of the tasks to slurmstepd. */
#ifndef ARCHFS_NAMESPACE_H
#define ARCHFS_NAMESPACE_H

/* Creates the two ends of the connection; {-1, -1} if that is impossible. */
void namespace_connect(int ends[2]);

/* Sends the caller's mount namespace. Does not wait, and ignores errors. */
void namespace_send(int end);

/* Returns a descriptor of the mount namespace that was sent, if it is not the caller's; else -1. */
int namespace_receive(int end);

#endif
