"""Publish the chart and the image: packaged, pushed by digest, with a bill of materials, signed, and verified again.

    python deploy/publish.py registry.example/team --image localhost/dpdist:0.1.0 --key cosign.key --output dist

The chart goes to REGISTRY/charts/dpdist, the image to REGISTRY/dpdist, both under the version of the chart. Programs on
the PATH: buildah (or `--pusher skopeo`), cosign, cyclonedx-py (package cyclonedx-bom), and syft where it is installed;
Helm's own code comes from .tools (`make tools`). Log in with `buildah login` or `skopeo login`, whose file cosign and
Helm read as well. Everything that was made is in the output folder, with `published.json`, which has the digests.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
CHART = ROOT / "helm" / "dpdist"
INSECURE: dict[bool, list[str]] = {True: ["--allow-http-registry"], False: []}
NEEDED = {"cosign": "github.com/sigstore/cosign", "cyclonedx-py": "the package cyclonedx-bom"}


def run(*command: str | Path) -> str:
    """What a program prints; the script ends with its message if it fails."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def push_chart(registry: str, version: str, output: Path, *, plain: bool) -> str:
    """Package the chart and push it; its address by digest."""
    sys.path.append(str(ROOT / ".tools"))
    try:
        from helm_python import chart
        from helm_python import registry as remote
    except ImportError:
        sys.exit("there is no Helm in .tools: make tools")
    archive = chart.package(CHART, destination=output)
    remote.push(archive, f"oci://{registry}/charts", plain_http=plain)
    tagged = f"{registry}/charts/dpdist:{version}"
    return run("cosign", "triangulate", "--type", "digest", *INSECURE[plain], tagged).strip()


def push_image(image: str, registry: str, version: str, output: Path, *, plain: bool, pusher: str) -> str:
    """Push an image of the local storage; its address by digest."""
    file, target = output / "image.digest", f"docker://{registry}/dpdist:{version}"
    if pusher == "buildah":
        run("buildah", "push", f"--tls-verify={not plain}".lower(), "--digestfile", file, image, target)
    else:
        source = image if ":" in image.split("/")[0] else f"containers-storage:{image}"
        run("skopeo", "copy", f"--dest-tls-verify={not plain}".lower(), "--digestfile", file, source, target)
    return f"{registry}/dpdist@{file.read_text().strip()}"


def bills(image: str | None, version: str, output: Path, *, plain: bool) -> dict[str, Path]:
    """Bills of materials in CycloneDX: of the Python packages that the image is built from, and of all of it."""
    found = {"python": output / f"dpdist-{version}.python.cdx.json"}
    run("cyclonedx-py", "requirements", ROOT / "deploy" / "image.lock", "--output-reproducible", "--of", "JSON",
        "--output-file", found["python"])  # fmt: skip
    if image is not None and shutil.which("syft"):
        os.environ["SYFT_REGISTRY_INSECURE_USE_HTTP"] = str(plain).lower()
        found["image"] = output / f"dpdist-{version}.image.cdx.json"
        run("syft", "scan", f"registry:{image}", "--output", f"cyclonedx-json={found['image']}")
    return found


def sign(address: str, key: str, bill: Path | None, *, plain: bool) -> None:
    """Sign what a digest names, attest its bill of materials, and verify both with the public key."""
    offline = ["--tlog-upload=false", "--yes"]
    public = str(Path(key).with_suffix(".pub"))
    run("cosign", "sign", "--key", key, *INSECURE[plain], *offline, address)
    run("cosign", "verify", "--key", public, *INSECURE[plain], "--insecure-ignore-tlog=true", address)
    if bill is not None:
        about = ["--type", "cyclonedx"]
        run("cosign", "attest", "--key", key, *INSECURE[plain], *offline, *about, "--predicate", bill, address)
        run(
            "cosign",
            "verify-attestation",
            "--key",
            public,
            *INSECURE[plain],
            "--insecure-ignore-tlog=true",
            *about,
            address,
        )


def main() -> None:
    """Publish what the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("registry", help="host and folder of an OCI registry, such as registry.example/team")
    parser.add_argument("--image", help="image in the local storage of buildah or podman; default: the chart alone")
    parser.add_argument("--key", help="private key of cosign (COSIGN_PASSWORD opens it); default: nothing is signed")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder for what is made; default: dist")
    parser.add_argument("--pusher", choices=["buildah", "skopeo"], default="buildah")
    parser.add_argument("--plain-http", action="store_true", help="a registry of this machine, without TLS")
    given = parser.parse_args()
    needed = ["cyclonedx-py", "cosign", *([given.pusher] if given.image else [])]
    for program in needed:
        if shutil.which(program) is None:
            sys.exit(f"{program} is not on the PATH: install {NEEDED.get(program, program)}")
    given.output.mkdir(parents=True, exist_ok=True)
    version = str(yaml.safe_load((CHART / "Chart.yaml").read_text())["version"])
    plain = given.plain_http
    published: dict[str, Any] = {
        "version": version,
        "chart": push_chart(given.registry, version, given.output, plain=plain),
    }
    if given.image:
        published["image"] = push_image(
            given.image, given.registry, version, given.output, plain=plain, pusher=given.pusher
        )
    made = bills(published.get("image"), version, given.output, plain=plain)
    if given.key:
        for name in ("chart", "image"):
            if name in published:
                bill = made.get("image", made["python"]) if name == "image" else None
                sign(published[name], given.key, bill, plain=plain)
    published |= {"signed": bool(given.key), "bills": {name: path.name for name, path in made.items()}}
    (given.output / "published.json").write_text(json.dumps(published, indent=2) + "\n")
    print(json.dumps(published, indent=2))


if __name__ == "__main__":
    main()
