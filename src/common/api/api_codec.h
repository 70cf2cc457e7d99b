// The API's messages to and from msgpack: each a map with a "type". See
// docs/protocol.md for the fields.
//
// Decoding believes nothing: size, depth, counts, names, types and ranges are
// checked, and an unknown field is an error that names the nearest known one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "common/api/api_messages.h"
#include "common/base/status.h"

namespace fastdecode {

// What a client may send.
using ClientMessage = std::variant<HelloMessage, SubmitMessage, CancelMessage, StatsMessage>;

// A message that can't be believed. With an id when one could be read out of a submit:
// then that request ends with this error.
struct MalformedMessage {
  std::optional<RequestId> submit_id;
  std::string reason;
};

std::variant<ClientMessage, MalformedMessage> DecodeClientMessage(std::span<const uint8_t> bytes);

// What a server may send.
using ServerMessage = std::variant<ServerInfo, TokensMessage, FinishedMessage, AcceptedMessage, StatsReply,
                                   HeartbeatMessage, ErrorMessage>;

Result<ServerMessage> DecodeServerMessage(std::span<const uint8_t> bytes);

// Encoders append to `out`.
void Encode(const HelloMessage& message, std::vector<uint8_t>& out);
void Encode(const SubmitMessage& message, std::vector<uint8_t>& out);
void Encode(const CancelMessage& message, std::vector<uint8_t>& out);
void Encode(const StatsMessage& message, std::vector<uint8_t>& out);
void Encode(const ServerInfo& message, std::vector<uint8_t>& out);
void Encode(const AcceptedMessage& message, std::vector<uint8_t>& out);
void Encode(const TokensMessage& message, std::vector<uint8_t>& out);
void Encode(const FinishedMessage& message, std::vector<uint8_t>& out);
void Encode(const StatsReply& message, std::vector<uint8_t>& out);
void Encode(const HeartbeatMessage& message, std::vector<uint8_t>& out);
void Encode(const ErrorMessage& message, std::vector<uint8_t>& out);

}  // namespace fastdecode
