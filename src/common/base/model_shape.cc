#include "common/base/model_shape.h"

#include <charconv>

namespace fastdecode {
namespace {

Status CheckRange(const char* what, int64_t value, int64_t high) {
  if (value >= 1 && value <= high) return OkStatus();
  return InvalidArgument(std::string(what) + " is " + std::to_string(value) + ", expected 1 to " +
                         std::to_string(high));
}

}  // namespace

Status CheckShape(const AttentionShape& shape) {
  FD_RETURN_IF_ERROR(CheckRange("num_layers", shape.num_layers, kMaxLayers));
  FD_RETURN_IF_ERROR(CheckRange("num_heads", shape.num_heads, kMaxHeads));
  FD_RETURN_IF_ERROR(CheckRange("num_kv_heads", shape.num_kv_heads, shape.num_heads));
  if (shape.num_heads % shape.num_kv_heads != 0) {
    return InvalidArgument("num_heads " + std::to_string(shape.num_heads) + " is no multiple of num_kv_heads " +
                           std::to_string(shape.num_kv_heads));
  }
  if (shape.head_dim <= 0 || shape.head_dim % 8 != 0 || shape.head_dim > kMaxHeadDim) {
    return {StatusCode::kUnimplemented, "head_dim " + std::to_string(shape.head_dim) +
                                            " is not in this build: expected a multiple of 8 up to " +
                                            std::to_string(kMaxHeadDim)};
  }
  return OkStatus();
}

std::string Describe(const AttentionShape& shape) {
  return std::to_string(shape.num_layers) + " layers, " + std::to_string(shape.num_heads) + " heads, " +
         std::to_string(shape.num_kv_heads) + " KV heads, head_dim " + std::to_string(shape.head_dim);
}

std::string FormatShape(const AttentionShape& shape) {
  return std::to_string(shape.num_layers) + "x" + std::to_string(shape.num_heads) + "x" +
         std::to_string(shape.num_kv_heads) + "x" + std::to_string(shape.head_dim);
}

Result<AttentionShape> ParseShape(const std::string& text) {
  AttentionShape shape;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  bool good = true;
  for (int32_t* number : {&shape.num_layers, &shape.num_heads, &shape.num_kv_heads, &shape.head_dim}) {
    const auto [rest, error] = std::from_chars(at, end, *number);
    const bool last = number == &shape.head_dim;
    good = good && error == std::errc() && (last ? rest == end : rest != end && *rest == 'x');
    at = rest == end ? end : rest + 1;
  }
  if (!good) {
    return InvalidArgument("\"" + text.substr(0, 80) +
                           "\" is no shape; expected layers x query heads x KV heads x head_dim, as in 32x32x8x128");
  }
  if (Status status = CheckShape(shape); !status.ok()) return InvalidArgument("\"" + text + "\": " + status.message());
  return shape;
}

}  // namespace fastdecode
