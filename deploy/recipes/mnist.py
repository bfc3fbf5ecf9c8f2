"""Turn MNIST files (idx, gzip or not) into Parquet tables of flat images for `deploy/releases/mnist-mixing.yaml`.

    python deploy/recipes/mnist.py IMAGES LABELS --out FOLDER [--test 2000]

Writes FOLDER/train.parquet and FOLDER/test.parquet: columns p0 ... p783 (0 to 255, row by row) and digit. Test images
are drawn at random, always the same. With ``--schema FILE`` writes the public schema, too.
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

PIXELS = 784


def read(path: Path, header: int) -> np.ndarray:
    """The bytes of an idx file after its header."""
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    return np.frombuffer(content, np.uint8, offset=header)


def table(pixels: np.ndarray, digits: np.ndarray) -> pa.Table:
    """Images as columns."""
    columns = {f"p{i}": pa.array(np.ascontiguousarray(pixels[:, i])) for i in range(PIXELS)}
    return pa.table({**columns, "digit": pa.array(digits)})


def schema() -> str:
    """The public schema, as YAML."""
    lines = ["# yaml-language-server: $schema=https://dpdist.example/docs/schemas/schema.json"]
    lines += ["# MNIST: 28 x 28 grey values, row by row, and the digit (deploy/recipes/mnist.py).", "attributes:"]
    lines += [f"  - {{name: p{i}, kind: integer, bounds: [0, 255]}}" for i in range(PIXELS)]
    lines.append("  - {name: digit, kind: ordinal, values: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Convert."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("labels", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--test", type=int, default=2000, help="images kept for testing")
    parser.add_argument("--schema", type=Path, help="write the schema here")
    arguments = parser.parse_args()
    digits = read(arguments.labels, 8)
    pixels = read(arguments.images, 16).reshape(len(digits), PIXELS)
    order = np.random.default_rng(0).permutation(len(digits))
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", order[: -arguments.test]), ("test", order[-arguments.test :])):
        pq.write_table(table(pixels[rows], digits[rows]), arguments.out / f"{name}.parquet")
        print(f"{arguments.out}/{name}.parquet: {len(rows):,} images")
    if arguments.schema:
        arguments.schema.write_text(schema())


if __name__ == "__main__":
    main()
