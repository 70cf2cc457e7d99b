#include "common/base/logging.h"

namespace fastdecode {

void InitLogging(const char* program) {
  FLAGS_logtostderr = true;
  google::InitGoogleLogging(program);
}

}  // namespace fastdecode
