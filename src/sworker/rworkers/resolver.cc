#include "sworker/rworkers/resolver.h"

namespace fastdecode {

Resolver::Resolver(std::function<void()> wake) : wake_(std::move(wake)), thread_(&Resolver::Run, this) {}

Resolver::~Resolver() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Resolver::Ask(int id, const HostPort& host_port) {
  {
    std::lock_guard lock(mutex_);
    questions_.emplace_back(id, host_port);
  }
  changed_.notify_one();
}

std::optional<Resolver::Answer> Resolver::Take(int id) {
  std::lock_guard lock(mutex_);
  auto found = answers_.find(id);
  if (found == answers_.end()) return std::nullopt;
  Answer answer = std::move(found->second);
  answers_.erase(found);
  return answer;
}

void Resolver::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !questions_.empty(); });
    if (stop_) return;
    auto [id, host_port] = std::move(questions_.front());
    questions_.pop_front();
    lock.unlock();
    Answer answer = ResolveAddress(host_port);
    lock.lock();
    answers_.insert_or_assign(id, std::move(answer));
    wake_();
  }
}

}  // namespace fastdecode
