#include "rworker/prefault.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>

#include "common/base/logging.h"
#include "rworker/host_limits.h"

namespace fastdecode::rworker {
namespace {

constexpr int64_t kBytes = int64_t{160} << 20;

class Mapping {
 public:
  Mapping() {
    void* const address =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(address != MAP_FAILED);
    data_ = static_cast<std::byte*>(address);
  }
  ~Mapping() { munmap(data_, kBytes); }
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
};

class LogLines : public google::LogSink {
 public:
  LogLines() { google::AddLogSink(this); }
  ~LogLines() override { google::RemoveLogSink(this); }
  void send(google::LogSeverity, const char*, const char*, int, const google::LogMessageTime&, const char* message,
            size_t length) override {
    text_ += std::string(message, length) + "\n";
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

TEST(Prefault, TouchesEveryPartWhateverTheThreads) {
  for (const int threads : {1, 2, 5}) {
    Mapping memory;
    const int64_t third = kBytes / 3 / 4096 * 4096;
    const std::vector<PrefaultPart> parts = {{memory.data(), third, {}},
                                             {memory.data() + third, third, AllowedCpus()},
                                             {memory.data() + 2 * third, kBytes - 2 * third, {}}};
    ASSERT_TRUE(Prefault(parts, {.threads = threads, .page_bytes = 2 << 20, .stop = {}}).ok());
    std::vector<unsigned char> present(kBytes / 4096);
    ASSERT_EQ(mincore(memory.data(), kBytes, present.data()), 0);
    for (const unsigned char page : present) ASSERT_EQ(page & 1, 1);
  }
}

TEST(Prefault, StopsWhenAsked) {
  Mapping memory;
  std::atomic<int> asked{0};
  // The first look comes after one tick, which leaves time for some of it.
  const std::vector<PrefaultPart> parts(700, {memory.data(), kBytes, {}});
  const Status status = Prefault(parts, {.threads = 1, .page_bytes = 2 << 20, .stop = [&] { return ++asked >= 2; }});
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_GE(asked, 2);
  EXPECT_THAT(status.message(), testing::HasSubstr("of 109 GiB of KV memory touched"));
}

TEST(Prefault, SaysHowFarItIs) {
  Mapping memory;
  LogLines log;
  std::atomic<int> asked{0};
  const std::vector<PrefaultPart> parts(700, {memory.data(), kBytes, {}});
  const PrefaultOptions options{
      .threads = 1, .page_bytes = 2 << 20, .stop = [&] { return ++asked >= 4; }, .log_interval_ms = 1};
  EXPECT_FALSE(Prefault(parts, options).ok());
  EXPECT_THAT(log.text(), testing::ContainsRegex("KV memory: [0-9]+ of 109 GiB touched"));
}

TEST(Prefault, MoreThanTheSystemGivesIsAnError) {
  Mapping memory;
  ASSERT_EQ(munmap(memory.data() + kBytes / 2, kBytes / 2), 0);
  const std::vector<PrefaultPart> parts = {{memory.data(), kBytes, {}}};
#ifdef MADV_POPULATE_WRITE
  const Status status = Prefault(parts, {.threads = 2, .page_bytes = 2 << 20, .stop = {}});
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), testing::HasSubstr("of 160 MiB of KV memory and then no more"));
#else
  GTEST_SKIP() << "this system cannot populate memory";
#endif
}

}  // namespace
}  // namespace fastdecode::rworker
