// The Model of model.h: layers of one LayerFactory in a row.
#pragma once

#include <memory>
#include <vector>

#include "sworker/model/layer.h"
#include "sworker/model/model.h"

namespace fastdecode {

enum class LayerKind {
  kBest,   // the CPU's own on a CPU, libtorch's operators elsewhere
  kTorch,  // libtorch's operators everywhere: the reference in tests
};

// As LoadModel, which takes kBest.
Result<std::unique_ptr<Model>> LoadLlama(const Config& config, DeviceRuntime& device, LayerKind kind);

}  // namespace fastdecode
