#include "sworker/device/cpu_stream.h"

#include <c10/core/InferenceMode.h>

#include <utility>

#include "common/base/logging.h"
#include "sworker/device/compute_pool.h"
#include "sworker/device/torch_status.h"

namespace fastdecode {

CpuStream::CpuStream(int cpu) : thread_([this, cpu] { Loop(cpu); }) {}

CpuStream::~CpuStream() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  not_empty_.notify_one();
  thread_.join();
}

void CpuStream::Launch(std::function<void()> work) {
  std::unique_lock<std::mutex> lock(mutex_);
  CHECK(launched_ - finished_ < kCapacity || std::this_thread::get_id() != thread_.get_id())
      << "a stream's work launches more than the stream's queue holds";
  progress_.wait(lock, [this] { return launched_ - finished_ < kCapacity; });
  queue_[launched_++ % kCapacity] = std::move(work);
  lock.unlock();
  not_empty_.notify_one();
}

void CpuStream::Synchronize() {
  std::unique_lock<std::mutex> lock(mutex_);
  progress_.wait(lock, [this, until = launched_] { return finished_ >= until; });
}

Status CpuStream::TakeError() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(error_, Status());
}

void CpuStream::RunOne(const std::function<void()>& work) {
  Status status = RunTorch(work);
  if (status.ok()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (error_.ok()) error_ = std::move(status);
}

void CpuStream::Loop(int cpu) {
  BecomeComputeThread(cpu);
  c10::InferenceMode inference;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    not_empty_.wait(lock, [this] { return stop_ || launched_ > finished_; });
    if (launched_ == finished_) return;  // Stopped, and all that was launched is done.
    std::function<void()> work = std::move(queue_[finished_ % kCapacity]);
    lock.unlock();
    RunOne(work);
    work = nullptr;  // What it captured goes before anyone hears that it is done.
    lock.lock();
    ++finished_;
    progress_.notify_all();
  }
}

}  // namespace fastdecode
