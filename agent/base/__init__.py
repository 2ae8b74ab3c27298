"""What knows nothing of the product: files, clocks, metrics, logs, sockets, tasks."""
