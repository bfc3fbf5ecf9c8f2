"""The convolutional network that DP-CDA's paper trains on images (its Table 2), in PyTorch.

Epochs and batches are not stated there: 8 epochs of batches of 64 here, and a rate that falls along a cosine from 0.001
to 0. Each image is centred and scaled by its own mean and deviation, because mixtures have another spread than images.
PyTorch is needed by this benchmark alone and is in no lock file: install it beside the others (`pip install torch`).
"""

from typing import Self

import numpy as np
import torch
from torch import nn

EPOCHS, BATCH, RATE = 8, 64, 1e-3
torch.set_num_threads(1)  # the benchmark has processes of its own


class Network:
    """Two convolutions and three full layers for images of 28 x 28, with the methods of an estimator of scikit-learn.

    Parameters
    ----------
    seed : int
    """

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.BatchNorm2d(32), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(64), nn.MaxPool2d(2)),
            nn.Flatten(),
            *(nn.Linear(3136, 100), nn.ReLU(), nn.Dropout(0.5)),
            *(nn.Linear(100, 100), nn.ReLU(), nn.Dropout(0.5)),
            nn.Linear(100, 10),
        )

    def fit(self, features: np.ndarray, labels: np.ndarray) -> Self:
        """Train on images, shape (records, 784), and their digits."""
        self.classes_ = np.arange(10)
        images, truth = _images(features), torch.as_tensor(labels)
        optimiser = torch.optim.Adam(self.layers.parameters(), lr=RATE)
        steps = EPOCHS * -(-len(images) // BATCH)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        self.layers.train()
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(images)).split(BATCH):
                optimiser.zero_grad()
                nn.functional.cross_entropy(self.layers(images[rows]), truth[rows]).backward()
                optimiser.step()
                schedule.step()
        return self

    def predict_proba(self, features: np.ndarray) -> np.ndarray:
        """Probabilities of the digits, shape (records, 10)."""
        self.layers.eval()
        with torch.no_grad():
            parts = [self.layers(part).softmax(1) for part in _images(features).split(1_000)]
        return torch.cat(parts).numpy().astype(np.float64)


def _images(features: np.ndarray) -> torch.Tensor:
    images = np.asarray(features, np.float32)
    scaled = (images - images.mean(1, keepdims=True)) / (images.std(1, keepdims=True) + 1e-6)
    return torch.as_tensor(scaled).reshape(-1, 1, 28, 28)
