"""Holds the sources to rules.py, and the R-worker's program to having no libtorch.

    layering_test.py REPOSITORY [R-WORKER]
"""

import pathlib
import subprocess
import sys
import unittest

from rules import violations

REPOSITORY = pathlib.Path(sys.argv[1])
RWORKER = sys.argv[2] if len(sys.argv) > 2 and sys.argv[2] else None
FOLDERS = ("bench", "cmake", "configs", "docs", "kernels", "python", "scripts", "src", "tests", ".ci")
DATA = (".json", ".jsonl", ".csv", ".safetensors", ".png", ".bin")


def sources():
    for folder in FOLDERS:
        for path in sorted((REPOSITORY / folder).rglob("*")):
            if path.is_file() and path.suffix not in DATA + (".pyc",):
                yield str(path.relative_to(REPOSITORY)), path.read_text(encoding="utf-8")
    for name in ("CMakeLists.txt", "Makefile", "README.md"):
        path = REPOSITORY / name
        if path.exists():
            yield name, path.read_text(encoding="utf-8")


class Sources(unittest.TestCase):
    def test_keep_the_rules(self):
        files = dict(sources())
        self.assertGreater(len(files), 50, "the sources were not found")
        found = [line for path, text in files.items() for line in violations(path, text)]
        self.assertEqual([], found, "\n" + "\n".join(found))


class RWorker(unittest.TestCase):
    @unittest.skipIf(RWORKER is None, "the R-worker's program was not named")
    def test_needs_no_libtorch(self):
        dynamic = subprocess.run(["readelf", "-d", RWORKER], check=True, capture_output=True, text=True).stdout
        needed = "\n".join(line for line in dynamic.splitlines() if "(NEEDED)" in line)
        self.assertIn("libc.so", needed)
        for library in ("libtorch", "libc10", "libcuda"):
            self.assertNotIn(library, needed)


class Rules(unittest.TestCase):
    """Each rule sees a breach, and leaves what is allowed alone."""

    def assert_breach(self, path, text):
        self.assertEqual(1, len(violations(path, text)), violations(path, text))

    def assert_fine(self, path, text):
        self.assertEqual([], violations(path, text))

    def test_libtorch(self):
        text = "#include <ATen/core/Tensor.h>\n"
        for path in ("src/common/wire/a.h", "src/sworker/scheduler/a.cc", "src/sworker/main.cc", "src/rworker/a.cc"):
            self.assert_breach(path, text)
        self.assert_fine("src/sworker/model/a.cc", text)
        self.assert_breach("src/sworker/model/a.cc", "#include <torch/torch.h>\n")
        self.assert_breach("src/sworker/model/a.cc", "#include <ATen/cuda/CUDAGraph.h>\n")
        self.assert_fine("src/sworker/device/cuda/a.cc", "#include <ATen/cuda/CUDAGraph.h>\n")

    def test_reserved_headers(self):
        self.assert_breach("src/common/transport/tcp/a.cc", "#include <infiniband/verbs.h>\n")
        self.assert_fine("src/common/transport/verbs/a.cc", "#include <infiniband/verbs.h>\n")
        self.assert_breach("kernels/reference/a.cc", "#include <immintrin.h>\n")
        self.assert_breach("src/rworker/a.cc", "#include <immintrin.h>\n")
        self.assert_fine("kernels/avx2/a.cc", "#include <immintrin.h>\n")
        self.assert_breach("src/rworker/server.cc", "#include <gflags/gflags.h>\n")
        self.assert_fine("src/rworker/main.cc", "#include <gflags/gflags.h>\n")

    def test_folders(self):
        self.assert_breach("src/sworker/a.cc", '#include "rworker/paged_kv.h"\n')
        self.assert_breach("src/rworker/a.cc", '#include "sworker/request.h"\n')
        self.assert_breach("src/common/base/a.h", '#include "common/config/config.h"\n')
        self.assert_breach("src/common/wire/a.h", '#include "common/transport/transport.h"\n')
        self.assert_breach("kernels/a.cc", '#include "common/base/status.h"\n')
        self.assert_breach("kernels/a.cc", "#include <glog/logging.h>\n")
        self.assert_fine("kernels/a.cc", '#include "kernels/dispatch.h"\n#include <vector>\n')
        self.assert_fine("src/rworker/a.cc", '#include "kernels/dispatch.h"\n#include "common/wire/codec.h"\n')
        self.assert_breach("src/sworker/scheduler/a.cc", "#include <chrono>\n")
        self.assert_breach("src/sworker/scheduler/a.cc", '#include "common/base/clock.h"\n')

    def test_text(self):
        self.assert_breach("docs/a.md", "TO" "DO: more\n")
        self.assert_breach("scripts/a", "cd /wo" "rk/main\n")
        self.assert_breach("src/common/base/a.cc", 'const char* x = getenv("X");\n')
        self.assert_breach("src/common/base/CMakeLists.txt", "file(GLOB x *.cc)\n")

    def test_lengths(self):
        body = "  x();\n"
        self.assert_fine("src/common/base/a.cc", "int A(int x,\n      int y) {\n" + body * 60 + "}\n\nint b();\n")
        self.assert_breach("src/common/base/a.cc", "int b();\n\nint A(int x) {\n" + body * 69 + "}\n")
        self.assert_breach("src/common/base/a.cc", "int A(int x) {\n" + body * 30 + "\n" + body * 40 + "}\n")
        self.assert_breach("src/common/base/a.h", "\n" * 501)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
