"""Where graphs run: executors, clusters, worker groups, logs of tasks."""
