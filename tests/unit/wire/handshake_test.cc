#include "common/wire/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sodium.h>

#include <set>
#include <string_view>

namespace fastdecode {
namespace {

using testing::HasSubstr;

AuthKey KeyOf(uint8_t fill) {
  AuthKey key;
  key.fill(fill);
  return key;
}

class HandshakeTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(InitCrypto().ok()); }

  // Runs a handshake; the client's verdict.
  Status Run(const AuthKey& client_key, const AuthKey& server_key) {
    ClientHandshake client(client_key, Purpose::kControl, 0, "rworker X");
    ServerHandshake server;
    FD_ASSIGN_OR_RETURN(Reply challenge, server.OnHello(client.hello()));
    FD_ASSIGN_OR_RETURN(Proof proof, client.OnChallenge(challenge));
    FD_ASSIGN_OR_RETURN(Reply verdict, server.OnProof(server_key, proof));
    FD_RETURN_IF_ERROR(client.OnVerdict(verdict));
    EXPECT_EQ(client.session_key(), server.session_key(server_key));
    session_keys_.insert(client.session_key());
    return OkStatus();
  }

  std::set<AuthKey> session_keys_;
};

TEST_F(HandshakeTest, SameSecretAgreesOnAFreshSessionKeyEachTime) {
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Run(KeyOf(1), KeyOf(1)).ok());
  EXPECT_EQ(session_keys_.size(), 20U);
  EXPECT_FALSE(session_keys_.contains(KeyOf(1)));
}

// The MAC as docs/wire.md defines it, computed with libsodium's one-shot function.
TEST_F(HandshakeTest, TheProofIsWhatTheDocumentSays) {
  ClientHandshake client(KeyOf(3), Purpose::kDecode, 42, "rworker X");
  ServerHandshake server;
  Reply challenge = server.OnHello(client.hello()).value();
  Proof proof = client.OnChallenge(challenge).value();
  std::string text = "fastdecode proof of the S-worker";
  text.append(reinterpret_cast<const char*>(&client.hello()), sizeof(Hello));
  text.append(reinterpret_cast<const char*>(&challenge), sizeof(Reply));
  AuthMac expected;
  AuthKey key = KeyOf(3);
  crypto_generichash(expected.data(), expected.size(), reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                     key.data(), key.size());
  EXPECT_EQ(proof.mac, expected);
}

TEST_F(HandshakeTest, AnotherSecretIsRefusedByR) {
  Status status = Run(KeyOf(1), KeyOf(2));
  EXPECT_EQ(status.code(), StatusCode::kPermissionDenied);
  ClientHandshake client(KeyOf(1), Purpose::kControl, 0, "rworker X");
  status = client.OnVerdict(MakeRefusal(ReplyCode::kRefusedProof));
  EXPECT_EQ(status.code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(status.message(), HasSubstr("rworker X has another secret; give every process"));
}

TEST_F(HandshakeTest, SRefusesAnRWorkerThatCannotProveItself) {
  ClientHandshake client(KeyOf(1), Purpose::kControl, 0, "rworker X");
  ServerHandshake server;
  Reply challenge = server.OnHello(client.hello()).value();
  Proof proof = client.OnChallenge(challenge).value();
  Reply forged;
  forged.code = static_cast<uint16_t>(ReplyCode::kAccepted);
  forged.bytes = proof.mac;  // sent back to its maker
  EXPECT_EQ(client.OnVerdict(forged).code(), StatusCode::kPermissionDenied);
  Reply right = server.OnProof(KeyOf(1), proof).value();
  right.bytes[31] ^= 1;
  EXPECT_EQ(client.OnVerdict(right).code(), StatusCode::kPermissionDenied);
}

TEST_F(HandshakeTest, AProofServesOneChallengePurposeAndSessionOnly) {
  auto prove = [](Purpose purpose, uint32_t incarnation, ServerHandshake& server) {
    ClientHandshake client(KeyOf(1), purpose, incarnation, "rworker X");
    Reply challenge = server.OnHello(client.hello()).value();
    return std::pair(client.hello(), client.OnChallenge(challenge).value());
  };
  ServerHandshake first;
  auto [hello, proof] = prove(Purpose::kDecode, 5, first);
  ASSERT_TRUE(first.OnProof(KeyOf(1), proof).ok());
  // Replayed: the challenge is another one.
  ServerHandshake second;
  ASSERT_TRUE(second.OnHello(hello).ok());
  EXPECT_EQ(second.OnProof(KeyOf(1), proof).status().code(), StatusCode::kPermissionDenied);
  // A man in the middle changes what is asked for.
  for (int field = 0; field < 2; ++field) {
    ClientHandshake client(KeyOf(1), Purpose::kDecode, 5, "rworker X");
    Hello changed = client.hello();
    if (field == 0) changed.purpose = static_cast<uint8_t>(Purpose::kControl);
    if (field == 1) changed.incarnation = 6;
    ServerHandshake server;
    Proof made = client.OnChallenge(server.OnHello(changed).value()).value();
    EXPECT_EQ(server.OnProof(KeyOf(1), made).status().code(), StatusCode::kPermissionDenied) << field;
  }
}

TEST_F(HandshakeTest, StrangersAndOtherVersionsAreToldApart) {
  ServerHandshake server;
  Hello hello;
  hello.purpose = 1;
  hello.magic = 0x20544547;  // "GET "
  EXPECT_EQ(server.OnHello(hello).status().code(), StatusCode::kDataLoss);
  hello = Hello();
  hello.purpose = 5;
  EXPECT_EQ(server.OnHello(hello).status().code(), StatusCode::kDataLoss);
  hello.purpose = 1;
  hello.version = 7;
  Status status = server.OnHello(hello).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("protocol version 7, this process speaks 3"));

  ClientHandshake client(KeyOf(1), Purpose::kControl, 0, "rworker X");
  Reply reply;
  reply.magic = 1;
  EXPECT_EQ(client.OnChallenge(reply).status().code(), StatusCode::kDataLoss);
  reply = MakeRefusal(ReplyCode::kRefusedVersion);
  reply.version = 1;
  status = client.OnChallenge(reply).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("rworker X speaks protocol version 1, this process speaks 3"));
  EXPECT_EQ(client.OnChallenge(MakeRefusal(ReplyCode::kAccepted)).status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace fastdecode
