#include "common/config/secret.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "temp_folder.h"

namespace fastdecode {
namespace {

using testing::HasSubstr;

std::string ToHex(const Secret& secret) {
  std::string text;
  for (const uint8_t byte : secret.key) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

std::string WriteSecret(const TempFolder& folder, const std::string& text, mode_t mode) {
  const std::string path = folder.Write("cluster.secret", text);
  chmod(path.c_str(), mode);
  return path;
}

// Python: hashlib.blake2b(b"0123456789abcdef" * 4, digest_size=32).hexdigest()
TEST(Secret, KeyIsBlake2bOfTheTrimmedText) {
  const TempFolder folder;
  const std::string text = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
  for (const std::string& written : {text, text + "\n", " \t" + text + "\r\n\n"}) {
    const auto secret = LoadSecret(WriteSecret(folder, written, 0600));
    ASSERT_TRUE(secret.ok()) << secret.status().message();
    EXPECT_EQ(ToHex(*secret), "3083e1ce982abd7f59235aa1ea3c97046562c75205d4dab8affd2f3600d79958");
  }
}

TEST(Secret, ReadableByOthersIsRefused) {
  const TempFolder folder;
  for (const mode_t mode : {0640u, 0604u, 0666u, 0620u}) {
    const auto secret = LoadSecret(WriteSecret(folder, std::string(64, 'a'), mode));
    ASSERT_FALSE(secret.ok()) << mode;
    EXPECT_EQ(secret.status().code(), StatusCode::kPermissionDenied);
    EXPECT_THAT(secret.status().message(), HasSubstr("chmod 600"));
  }
  EXPECT_TRUE(LoadSecret(WriteSecret(folder, std::string(64, 'a'), 0400)).ok());
}

TEST(Secret, LengthIsBounded) {
  const TempFolder folder;
  EXPECT_FALSE(LoadSecret(WriteSecret(folder, "", 0600)).ok());
  EXPECT_FALSE(LoadSecret(WriteSecret(folder, std::string(100, '\n'), 0600)).ok());
  EXPECT_FALSE(LoadSecret(WriteSecret(folder, std::string(31, 'a') + "   ", 0600)).ok());
  EXPECT_TRUE(LoadSecret(WriteSecret(folder, std::string(32, 'a'), 0600)).ok());
  EXPECT_TRUE(LoadSecret(WriteSecret(folder, std::string(4096, 'a'), 0600)).ok());
  EXPECT_FALSE(LoadSecret(WriteSecret(folder, std::string(4097, 'a'), 0600)).ok());
}

TEST(Secret, WhatIsNoFileIsRefused) {
  const TempFolder folder;
  const auto missing = LoadSecret(folder.path() + "/none");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr("create one with"));
  EXPECT_FALSE(LoadSecret(folder.path()).ok());
  ASSERT_EQ(mkfifo((folder.path() + "/fifo").c_str(), 0600), 0);
  EXPECT_FALSE(LoadSecret(folder.path() + "/fifo").ok());
}

}  // namespace
}  // namespace fastdecode
