#include "rworker/prefault.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "common/base/logging.h"
#include "rworker/host_limits.h"

namespace fastdecode::rworker {
namespace {

// Some ten milliseconds of a thread: how long a stop may have to wait.
constexpr int64_t kChunkBytes = int64_t{32} << 20;
constexpr std::chrono::milliseconds kTick(20);
constexpr int64_t kNsPerMs = 1'000'000;

// Makes every page present. 0 or an errno.
int Touch(std::byte* begin, int64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(begin, static_cast<size_t>(bytes), MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;  // EINVAL: a kernel before 5.14
#endif
  const int64_t page = sysconf(_SC_PAGESIZE);
  for (int64_t i = 0; i < bytes; i += page) *const_cast<volatile std::byte*>(begin + i) = std::byte{0};
  return 0;
}

class Prefaulter {
 public:
  Prefaulter(std::span<const PrefaultPart> parts, const PrefaultOptions& options)
      : parts_(parts),
        options_(options),
        chunk_bytes_(std::max(kChunkBytes, options.page_bytes)),
        next_chunk_(new std::atomic<int64_t>[parts.size()]()) {
    for (const PrefaultPart& part : parts) total_bytes_ += part.bytes;
  }

  Status Run() {
    std::vector<std::thread> threads;
    running_ = options_.threads;
    for (int t = 0; t < options_.threads; ++t) threads.emplace_back([this, t] { Work(static_cast<size_t>(t)); });
    Watch();
    for (std::thread& thread : threads) thread.join();
    if (const int error = error_.load()) {
      return {StatusCode::kResourceExhausted, "the system gave " + Progress() + " of KV memory and then no more (" +
                                                  strerror(error) + "); lower kv_memory or free memory"};
    }
    if (stop_) {
      return {StatusCode::kCancelled, "stopped with " + Progress() + " of KV memory touched"};
    }
    return OkStatus();
  }

 private:
  // Its own part first, then what others have left of theirs.
  void Work(size_t thread) {
    for (size_t i = 0; i < parts_.size(); ++i) {
      const size_t index = (thread + i) % parts_.size();
      const PrefaultPart& part = parts_[index];
      if (!part.cpus.empty()) (void)BindThisThread(part.cpus);  // elsewhere it is slower, not wrong
      while (!stop_ && error_ == 0) {
        const int64_t begin = next_chunk_[index].fetch_add(1) * chunk_bytes_;
        if (begin >= part.bytes) break;
        const int64_t bytes = std::min(chunk_bytes_, part.bytes - begin);
        const int error = Touch(part.data + begin, bytes);
        if (error != 0) error_ = error;
        if (error == 0) touched_ += bytes;
      }
    }
    std::lock_guard lock(mutex_);
    if (--running_ == 0) done_.notify_one();
  }

  void Watch() {
    int64_t next_log_ns = NowNs() + options_.log_interval_ms * kNsPerMs;
    std::unique_lock lock(mutex_);
    while (!done_.wait_for(lock, kTick, [this] { return running_ == 0; })) {
      if (options_.stop && options_.stop()) stop_ = true;
      if (NowNs() < next_log_ns) continue;
      next_log_ns += options_.log_interval_ms * kNsPerMs;
      LOG(INFO) << "KV memory: " << Progress() << " touched";
    }
  }

  // "40 of 200 GiB", "512 of 2048 MiB".
  std::string Progress() const {
    const bool large = total_bytes_ >= int64_t{100} << 30;
    const int shift = large ? 30 : 20;
    return std::to_string(touched_.load() >> shift) + " of " + std::to_string(total_bytes_ >> shift) +
           (large ? " GiB" : " MiB");
  }

  const std::span<const PrefaultPart> parts_;
  const PrefaultOptions& options_;
  const int64_t chunk_bytes_;
  int64_t total_bytes_ = 0;
  const std::unique_ptr<std::atomic<int64_t>[]> next_chunk_;  // by part
  std::atomic<int64_t> touched_{0};
  std::atomic<bool> stop_{false};
  std::atomic<int> error_{0};
  std::mutex mutex_;
  std::condition_variable done_;
  int running_ = 0;  // threads, under mutex_
};

}  // namespace

Status Prefault(std::span<const PrefaultPart> parts, const PrefaultOptions& options) {
  return Prefaulter(parts, options).Run();
}

}  // namespace fastdecode::rworker
