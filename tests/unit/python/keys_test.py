import os
import tempfile
import unittest

from package import REPOSITORY  # noqa: F401
from zmq.utils import z85

from fastdecode import keys
from fastdecode.errors import UsageError


class Derivation(unittest.TestCase):
    def test_are_those_of_libsodium(self):
        """The values are libsodium's: crypto_box_seed_keypair of crypto_generichash, in the C++ test beside."""
        derived = keys.derive(bytes(range(32)))
        self.assertEqual("a33b750d7d6b02051541039d70aea19bc4a221cf083e1b75288febf0e35d050b",
                         z85.decode(derived.server_public).hex())
        self.assertEqual("cdf92e09976916b17f931a66f5ec89559d2908c8ba3cf2a1e97c99e4f7d39709",
                         z85.decode(derived.client_public).hex())
        self.assertEqual("0b00f8fe375a6867c086c5cd6ecf74767aa4afae8dda70dd228db9e13c35a486",
                         z85.decode(derived.client_secret).hex())


class SecretFile(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "secret")

    def write(self, content, mode=0o600):
        with open(self.path, "wb") as file:
            file.write(content)
        os.chmod(self.path, mode)

    def assert_refused(self, pattern):
        with self.assertRaisesRegex(UsageError, pattern):
            keys.load(self.path)

    def test_white_space_around_it_does_not_count(self):
        self.write(b"x" * 40)
        first = keys.load(self.path)
        self.write(b"\n " + b"x" * 40 + b"\r\n")
        self.assertEqual(first, keys.load(self.path))

    def test_faults(self):
        self.assert_refused("does not exist")
        self.write(b"x" * 31)
        self.assert_refused("holds 31 bytes")
        self.write(b"x" * 5000)
        self.assert_refused("expected 32 to 4096")
        self.write(b"x" * 64, 0o644)
        self.assert_refused("mode 0644.*chmod 600")
        os.remove(self.path)
        os.mkfifo(self.path, 0o600)
        self.assert_refused("not a regular file")


if __name__ == "__main__":
    unittest.main()
