#include "sworker/engine/engine_context.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include <utility>

#include "common/base/logging.h"

namespace fastdecode {

void LaunchStage(EngineContext& context, StageId id, StageTimes* times, std::function<void()> copy_in,
                 std::function<void()> compute, std::function<void()> copy_out) {
  DeviceStream& stream = context.stream;
  auto launch = [&stream](std::function<void()> work) {
    if (!work) return;
    stream.Launch([work = std::move(work)] {
      c10::InferenceMode guard;
      work();
    });
  };
  stream.Notify([times] { times->begin_ns = NowNs(); });
  launch(std::move(copy_in));
  stream.Notify([times] { times->copied_in_ns = NowNs(); });
  launch(std::move(compute));
  stream.Notify([times] { times->computed_ns = NowNs(); });
  launch(std::move(copy_out));
  stream.Notify([times, id, completions = &context.completions] {
    times->end_ns = NowNs();
    completions->Push({.id = id, .times = *times});
  });
}

at::Tensor HostRowsTensor(std::byte* data, int64_t rows, int64_t width) {
  return at::from_blob(data, {rows, width}, at::TensorOptions().dtype(at::kHalf));
}

HostBuffer::HostBuffer(DeviceRuntime& device, int64_t elements, at::ScalarType type)
    : memory(device.AllocatePinned(static_cast<size_t>(elements) * c10::elementSize(type))),
      tensor(at::from_blob(memory.get(), {elements}, at::TensorOptions().dtype(type))) {
  CHECK(memory != nullptr) << "no memory for a buffer of " << elements << " elements";
}

}  // namespace fastdecode
