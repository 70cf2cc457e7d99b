"""The transports' contract over verbs. Usage: contract_test.py BUILD_FOLDER"""

import sys

from rdma_case import run_on_device

# A skipped test would hide that there is no device where there should be one.
sys.exit(run_on_device(sys.argv[1], "transport_contract_test", ["--gtest_filter=*verbs*", "--gtest_brief=1"], 400))
