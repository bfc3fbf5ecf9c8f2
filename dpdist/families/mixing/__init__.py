"""Class-wise noisy mixtures (DP-CDA), central and federated."""
