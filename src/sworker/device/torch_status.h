// libtorch throws; nothing above this header does.
#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/status.h"

namespace fastdecode {

// What follows the first line lists every backend and where it was registered.
inline std::string FirstLine(std::string_view text) {
  return std::string(text.substr(0, std::min(text.find('\n'), size_t{300})));
}

// Runs what calls libtorch and makes a Status of what it throws: kResourceExhausted (out
// of memory, device or host), kUnimplemented (no such operator or backend), kInternal.
// c10::Error's what() writes a backtrace, so that class is caught before std::exception.
template <typename Work>
Status RunTorch(Work&& work) noexcept try {
  std::forward<Work>(work)();
  return {};
} catch (const c10::OutOfMemoryError& e) {  // CUDA's allocator
  return {StatusCode::kResourceExhausted, FirstLine(e.what_without_backtrace())};
} catch (const c10::NotImplementedError& e) {
  return {StatusCode::kUnimplemented, FirstLine(e.what_without_backtrace())};
} catch (const c10::Error& e) {
  std::string message = FirstLine(e.what_without_backtrace());
  const bool memory = message.find("can't allocate memory") != std::string::npos;  // the CPU's allocator
  return {memory ? StatusCode::kResourceExhausted : StatusCode::kInternal, std::move(message)};
} catch (const std::bad_alloc&) {
  return {StatusCode::kResourceExhausted, "out of memory"};
} catch (const std::exception& e) {
  return {StatusCode::kInternal, FirstLine(e.what())};
} catch (...) {
  return {StatusCode::kInternal, "unknown exception"};
}

}  // namespace fastdecode
