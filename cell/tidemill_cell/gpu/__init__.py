"""What the GPUs and RDMA ports of a cell tell about themselves. Where there are none, nothing is told: absent is not zero."""
