"""Executors, Dask clusters, worker groups, and the logs of tasks."""
