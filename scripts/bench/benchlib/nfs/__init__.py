"""scripts/bench/nfs: the host starts node.py in a virtual machine, which has an NFS server and a client."""
