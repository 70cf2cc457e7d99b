#include "common/wire/handshake.h"

#include <sodium.h>

namespace fastdecode {
namespace {

static_assert(crypto_generichash_BYTES == sizeof(AuthMac) && crypto_generichash_KEYBYTES == sizeof(AuthKey));

constexpr std::string_view kClientLabel = "fastdecode proof of the S-worker";
constexpr std::string_view kServerLabel = "fastdecode proof of the R-worker";
constexpr std::string_view kSessionLabel = "fastdecode session key";

AuthMac MakeMac(const AuthKey& key, std::string_view label, const Hello& hello, const Reply& challenge) {
  crypto_generichash_state state;
  crypto_generichash_init(&state, key.data(), key.size(), sizeof(AuthMac));
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(label.data()), label.size());
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(&hello), sizeof(hello));
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(&challenge), sizeof(challenge));
  AuthMac mac;
  crypto_generichash_final(&state, mac.data(), mac.size());
  return mac;
}

bool SameMac(const uint8_t* a, const uint8_t* b) { return sodium_memcmp(a, b, sizeof(AuthMac)) == 0; }

std::string Versions(unsigned theirs) {
  return "protocol version " + std::to_string(theirs) + ", this process speaks " + std::to_string(kProtocolVersion);
}

constexpr const char* kSameSecret = "give every process of the cluster the same secret file";

}  // namespace

Status InitCrypto() { return sodium_init() >= 0 ? OkStatus() : Internal("libsodium cannot start on this host"); }

Reply MakeRefusal(ReplyCode code) {
  Reply reply;
  reply.code = static_cast<uint16_t>(code);
  return reply;
}

ClientHandshake::ClientHandshake(const AuthKey& key, Purpose purpose, uint32_t incarnation, std::string peer)
    : key_(key), peer_(std::move(peer)) {
  hello_.purpose = static_cast<uint8_t>(purpose);
  hello_.incarnation = incarnation;
  randombytes_buf(hello_.nonce.data(), hello_.nonce.size());
}

Status ClientHandshake::CheckReply(const Reply& reply, ReplyCode expected) const {
  if (reply.magic != kReplyMagic) return DataLoss(peer_ + " is not an R-worker: it answers something else");
  if (reply.version != kProtocolVersion) {
    return InvalidArgument(peer_ + " speaks " + Versions(reply.version) + "; install the same FastDecode on both");
  }
  if (reply.code == static_cast<uint16_t>(expected)) return OkStatus();
  switch (static_cast<ReplyCode>(reply.code)) {
    case ReplyCode::kRefusedVersion:
      return InvalidArgument(peer_ + " refuses our protocol version");
    case ReplyCode::kRefusedProof:
      return {StatusCode::kPermissionDenied, peer_ + " has another secret; " + kSameSecret};
    case ReplyCode::kRefusedStream:
      return Unavailable(peer_ + " ended the session before its streams were there");
    case ReplyCode::kChallenge:
    case ReplyCode::kAccepted:
      break;
  }
  return DataLoss(peer_ + " answers code " + std::to_string(reply.code) + " where " +
                  std::to_string(static_cast<int>(expected)) + " was expected");
}

Result<Proof> ClientHandshake::OnChallenge(const Reply& reply) {
  FD_RETURN_IF_ERROR(CheckReply(reply, ReplyCode::kChallenge));
  challenge_ = reply;
  return Proof{MakeMac(key_, kClientLabel, hello_, challenge_)};
}

Status ClientHandshake::OnVerdict(const Reply& reply) const {
  FD_RETURN_IF_ERROR(CheckReply(reply, ReplyCode::kAccepted));
  if (SameMac(reply.bytes.data(), MakeMac(key_, kServerLabel, hello_, challenge_).data())) return OkStatus();
  return {StatusCode::kPermissionDenied, peer_ + " does not prove that it knows the secret; " + kSameSecret};
}

AuthKey ClientHandshake::session_key() const { return MakeMac(key_, kSessionLabel, hello_, challenge_); }

Result<Reply> ServerHandshake::OnHello(const Hello& hello) {
  if (hello.magic != kHelloMagic) return DataLoss("the bytes are not a FastDecode hello");
  if (hello.version != kProtocolVersion) return InvalidArgument("it speaks " + Versions(hello.version));
  if (hello.purpose < 1 || hello.purpose > 4) {
    return DataLoss("a hello with the unknown purpose " + std::to_string(hello.purpose));
  }
  hello_ = hello;
  challenge_ = Reply();
  challenge_.code = static_cast<uint16_t>(ReplyCode::kChallenge);
  randombytes_buf(challenge_.bytes.data(), challenge_.bytes.size());
  return challenge_;
}

Result<Reply> ServerHandshake::OnProof(const AuthKey& key, const Proof& proof) const {
  if (!SameMac(proof.mac.data(), MakeMac(key, kClientLabel, hello_, challenge_).data())) {
    return Status(StatusCode::kPermissionDenied, "it does not know the secret");
  }
  Reply reply;
  reply.code = static_cast<uint16_t>(ReplyCode::kAccepted);
  reply.bytes = MakeMac(key, kServerLabel, hello_, challenge_);
  return reply;
}

AuthKey ServerHandshake::session_key(const AuthKey& secret) const {
  return MakeMac(secret, kSessionLabel, hello_, challenge_);
}

}  // namespace fastdecode
