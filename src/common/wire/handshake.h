// The proof that both ends of a connection know the same key: the cluster's secret for a
// control connection, the session's key for its data streams.
//
// Each MAC is keyed BLAKE2b-256 (libsodium's crypto_generichash) over a label that names
// its direction, the whole Hello (purpose and incarnation with it) and R's nonce; so no
// proof serves twice, for another purpose, or sent back to its maker. S proves first: R
// tells a stranger nothing.
//
// Pure: bytes in, bytes out; no socket and no clock. Errors name the peer and the remedy.
#pragma once

#include <string>

#include "common/base/status.h"
#include "common/wire/control.h"

namespace fastdecode {

// Once before anything else here; fails only where libsodium cannot start.
Status InitCrypto();

// The S-worker's side.
class ClientHandshake {
 public:
  ClientHandshake(const AuthKey& key, Purpose purpose, uint32_t incarnation, std::string peer);

  const Hello& hello() const { return hello_; }
  Result<Proof> OnChallenge(const Reply& reply);
  Status OnVerdict(const Reply& reply) const;
  AuthKey session_key() const;  // after OnVerdict said ok

 private:
  Status CheckReply(const Reply& reply, ReplyCode expected) const;

  const AuthKey key_;
  const std::string peer_;
  Hello hello_;
  Reply challenge_;
};

// The R-worker's side.
class ServerHandshake {
 public:
  // The challenge. kInvalidArgument: another version, to be told so (MakeRefusal).
  // kDataLoss: no peer of ours; it gets no answer.
  Result<Reply> OnHello(const Hello& hello);
  // kPermissionDenied: the peer does not know the key.
  Result<Reply> OnProof(const AuthKey& key, const Proof& proof) const;

  const Hello& hello() const { return hello_; }
  Purpose purpose() const { return static_cast<Purpose>(hello_.purpose); }
  AuthKey session_key(const AuthKey& secret) const;

 private:
  Hello hello_;
  Reply challenge_;
};

Reply MakeRefusal(ReplyCode code);

}  // namespace fastdecode
