// Speaks to an R-worker's port byte by byte, as an S-worker or as something worse.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/wire/handshake.h"
#include "tests/integration/rworker/harness.h"

namespace fastdecode {

SessionOpen OpenFrom(const SessionOptions& options);

class RawClient {
 public:
  explicit RawClient(const std::string& address);
  void Write(const void* bytes, size_t size);
  template <typename T>
  void Write(const T& value) {
    Write(&value, sizeof(value));
  }
  template <typename T>
  void WriteFrame(const T& payload) {
    FrameHeader header;
    header.type = static_cast<uint16_t>(T::kType);
    header.payload_bytes = sizeof(T);
    Write(header);
    Write(payload);
  }
  // Whether a whole T came within `patience`; false also when the peer closed.
  bool ReadBytes(void* bytes, size_t size, int patience_ms = 5000);
  template <typename T>
  bool Read(T& value, int patience_ms = 5000) {
    return ReadBytes(&value, sizeof(value), patience_ms);
  }
  // Reads frames until one of type T, past heartbeats.
  template <typename T>
  bool ReadFrame(T& payload) {
    FrameHeader header;
    while (Read(header)) {
      std::vector<char> bytes(header.payload_bytes);
      if (!ReadBytes(bytes.data(), bytes.size())) return false;
      if (header.type != static_cast<uint16_t>(T::kType)) continue;
      std::memcpy(static_cast<void*>(&payload), bytes.data(), sizeof(T));
      return true;
    }
    return false;
  }
  // After the grant; true once it is accepted.
  bool OfferTcp();
  void ReadyWithTcp();                      // once both streams have proven themselves
  bool PeerClosed(int patience_ms = 5000);  // reads and drops what comes before

  // The whole opening with this key; the session's key in session_key().
  Status Prove(const AuthKey& key, Purpose purpose = Purpose::kControl, uint32_t incarnation = 0);
  const AuthKey& session_key() const { return session_key_; }

 private:
  Fd socket_;
  AuthKey session_key_{};
};

}  // namespace fastdecode
