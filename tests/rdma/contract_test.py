"""The transports' contract over verbs, and what verbs promises beyond it. Usage: contract_test.py BUILD_FOLDER"""

import sys

from rdma_case import run_on_device

sys.exit(run_on_device(sys.argv[1], ["transport_contract_test --gtest_filter=*verbs*", "transport_faults_test --gtest_filter=*verbs* --seeds=50", "verbs_endpoint_test"], 400))
