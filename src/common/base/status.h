// Status and Result: an expected failure is a value.
//
// The function that detects a fault describes it once: what was expected, what
// came, and what to do about it. Callers pass it up, adding context only where
// they know something that the detector could not.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace fastdecode {

enum class StatusCode {
  kOk,
  kWouldBlock,         // No credit or nothing there yet: try again after Progress.
  kInvalidArgument,    // The caller, a config or a request is wrong.
  kNotFound,           // A file, key or tensor is missing.
  kPermissionDenied,   // The peer did not prove that it knows the secret.
  kDataLoss,           // Bytes from outside are malformed, cut short or contradictory.
  kResourceExhausted,  // Memory, KV blocks, descriptors.
  kUnavailable,        // The peer is gone or unreachable.
  kDeadlineExceeded,   // The peer is silent.
  kUnimplemented,      // Known by name, not in this build.
  kCancelled,
  kInternal,
};

std::string_view StatusCodeName(StatusCode code);  // "ok", "would_block", "invalid_argument", ...

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  std::string ToString() const;  // "unavailable: ..."

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status OkStatus() { return {}; }
inline Status InvalidArgument(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }
inline Status NotFound(std::string message) { return {StatusCode::kNotFound, std::move(message)}; }
inline Status DataLoss(std::string message) { return {StatusCode::kDataLoss, std::move(message)}; }
inline Status Unavailable(std::string message) { return {StatusCode::kUnavailable, std::move(message)}; }
inline Status Internal(std::string message) { return {StatusCode::kInternal, std::move(message)}; }

// A T or the Status that says why there is none. value() of an error is a broken
// invariant and terminates.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}         // NOLINT: implicit on purpose
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {}  // NOLINT
  bool ok() const { return state_.index() == 0; }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  Status status() const { return ok() ? Status() : std::get<1>(state_); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace fastdecode

// Evaluates a Status; returns it from the enclosing function unless it is ok.
#define FD_RETURN_IF_ERROR(expr)              \
  do {                                        \
    ::fastdecode::Status fd_status_ = (expr); \
    if (!fd_status_.ok()) return fd_status_;  \
  } while (false)

#define FD_CONCAT_INNER_(a, b) a##b
#define FD_CONCAT_(a, b) FD_CONCAT_INNER_(a, b)
// FD_ASSIGN_OR_RETURN(auto x, MakeX()): x, or return the Status.
#define FD_ASSIGN_OR_RETURN(declaration, expr) FD_ASSIGN_OR_RETURN_(FD_CONCAT_(fd_result_, __LINE__), declaration, expr)
#define FD_ASSIGN_OR_RETURN_(result, declaration, expr) \
  auto result = (expr);                                 \
  if (!result.ok()) return result.status();             \
  declaration = std::move(result).value()
