import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from needs import need

from dpdist.errors import SpecError, VerificationFailed
from dpdist.ledger.signing import VARIABLE, check_signature, load_public_key, load_signing_key, sign
from dpdist.publish.manifest import MANIFEST, SIGNATURE, Manifest
from dpdist.publish.verify import read_manifest, read_release, verify
from dpdist.storage.store import Store


def private_pem(key: object, encryption: KeySerializationEncryption | None = None) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption())  # type: ignore[attr-defined]


def public_pem(key: object) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined]


@pytest.fixture
def key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes, int], Path]:
    def file(content: bytes, mode: int = 0o600) -> Path:
        path = tmp_path / "key.pem"
        path.write_bytes(content)
        path.chmod(mode)
        return path

    return file


class TestKeys:
    def test_a_private_key_comes_from_a_file_or_the_environment(
        self, key: Ed25519PrivateKey, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert load_signing_key() is None
        loaded = load_signing_key(write(private_pem(key)))
        monkeypatch.setenv(VARIABLE, private_pem(key).decode())
        other = load_signing_key()
        assert loaded is not None
        assert other is not None
        assert sign(b"text", loaded) == sign(b"text", other) == sign(b"text", key)

    def test_a_public_key_comes_from_a_file(self, key: Ed25519PrivateKey, write: Callable[..., Path]) -> None:
        check_signature(b"text", sign(b"text", key), load_public_key(write(public_pem(key), 0o644)))

    def test_wrong_private_keys_are_refused_with_advice(
        self, key: Ed25519PrivateKey, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        with pytest.raises(SpecError, match=r"cannot be read \(No such file or directory\): check the path"):
            load_signing_key(tmp_path / "none.pem")
        with pytest.raises(SpecError, match="run `chmod 600"):
            load_signing_key(write(private_pem(key), 0o640))
        with pytest.raises(SpecError, match="is encrypted: decrypt it"):
            load_signing_key(write(private_pem(key, BestAvailableEncryption(b"planted"))))
        with pytest.raises(SpecError, match="is not a private key in PEM: make one with"):
            load_signing_key(write(public_pem(key)))
        with pytest.raises(SpecError, match="is not an Ed25519 key"):
            load_signing_key(write(private_pem(generate_private_key(SECP256R1()))))
        monkeypatch.setenv(VARIABLE, "planted")
        with pytest.raises(SpecError, match=f"signing key in {VARIABLE} is not a private key") as caught:
            load_signing_key()
        assert "planted" not in str(caught.value)

    def test_wrong_public_keys_are_refused_with_advice(
        self, key: Ed25519PrivateKey, write: Callable[..., Path], tmp_path: Path
    ) -> None:
        with pytest.raises(SpecError, match="cannot be read"):
            load_public_key(tmp_path / "none.pem")
        with pytest.raises(SpecError, match=r"is not a public key in PEM: make it with `openssl pkey .* -pubout"):
            load_public_key(write(private_pem(key)))
        with pytest.raises(SpecError, match="is not an Ed25519 key"):
            load_public_key(write(public_pem(generate_private_key(SECP256R1()))))


class TestSignedReleases:
    def test_a_signature_covers_the_release(
        self, place: str, release: Callable[..., Manifest], key: Ed25519PrivateKey
    ) -> None:
        release(Store(place), signing_key=key)
        assert verify(place, key.public_key()).signature == "valid"
        assert verify(place).signature == "not checked"
        assert read_release(place, key.public_key()).num_rows == read_manifest(place, key.public_key()).records

    def test_a_required_signature_that_is_missing_or_forged_fails(
        self, place: str, release: Callable[..., Manifest], key: Ed25519PrivateKey
    ) -> None:
        store = Store(place)
        manifest = release(store, signing_key=key)
        other = Ed25519PrivateKey.generate()
        for call in (verify, read_release, read_manifest):
            with pytest.raises(VerificationFailed, match=r"does not fit the manifest and the public key"):
                call(place, other.public_key())
        for forged in (sign(manifest.to_bytes(), other), b"", bytes(64)):
            store.write_bytes(SIGNATURE, forged)
            with pytest.raises(VerificationFailed, match="changed after signing, or signed with another key"):
                verify(place, key.public_key())
        store.delete(SIGNATURE)
        with pytest.raises(VerificationFailed, match=r"manifest\.sig is missing"):
            verify(place, key.public_key())
        assert verify(place).signature == "none"

    def test_a_consistent_forgery_fails(
        self, place: str, release: Callable[..., Manifest], key: Ed25519PrivateKey
    ) -> None:
        store = Store(place)
        manifest = release(store, signing_key=key)
        forged = manifest.model_copy(update={"name": "forged"})
        store.write_bytes(MANIFEST, forged.to_bytes())
        verify(place)
        with pytest.raises(VerificationFailed, match="the manifest was changed after signing"):
            verify(place, key.public_key())

    def test_openssl_makes_keys_and_checks_signatures(self, tmp_path: Path, release: Callable[..., Manifest]) -> None:
        need("openssl", "OpenSSL", "openssl")

        def openssl(*arguments: str) -> str:
            done = subprocess.run(["openssl", *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)
            return done.stdout

        openssl("genpkey", "-algorithm", "ed25519", "-out", "signing.pem")
        (tmp_path / "signing.pem").chmod(0o600)
        openssl("pkey", "-in", "signing.pem", "-pubout", "-out", "public.pem")
        release(Store(tmp_path / "release"), signing_key=load_signing_key(tmp_path / "signing.pem"))
        files = ("-in", f"release/{MANIFEST}", "-sigfile", f"release/{SIGNATURE}")
        assert "Verified" in openssl("pkeyutl", "-verify", "-rawin", *files, "-pubin", "-inkey", "public.pem")
        assert verify(tmp_path / "release", load_public_key(tmp_path / "public.pem")).signature == "valid"
