// The one header through which the project reaches glog.
//
// libtorch's c10/util/Logging.h, which ATen's headers include, has its own LOG,
// VLOG, CHECK and more. With C10_USE_GLOG (CMake sets it for all that see
// libtorch) it takes glog's instead, in any order of includes.
#pragma once

#ifdef C10_UTIL_LOGGING_IS_NOT_GOOGLE_GLOG_H_
#error "libtorch's headers came first and without C10_USE_GLOG: LOG(INFO) would go nowhere"
#endif
#include <glog/logging.h>

namespace fastdecode {

// Once, first thing in main. Logs go to stderr.
void InitLogging(const char* program);

}  // namespace fastdecode
