// Configs and models for the tests of this folder.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "common/base/logging.h"
#include "common/config/config.h"
#include "sworker/device/device_runtime.h"
#include "sworker/model/llama_model.h"

namespace fastdecode::testing {

inline std::string ModelFolder(const std::string& name) { return std::string(FASTDECODE_MODELS_DIR) + "/" + name; }

// The whole model of a folder, its own context, f32.
inline Config FolderConfig(const std::string& folder) {
  Config config;
  config.model.path = folder;
  Result<ModelConfig> model = LoadModelConfig(folder);
  CHECK(model.ok()) << model.status().ToString();
  config.model_config = *model;
  config.max_context = static_cast<int>(model->max_position_embeddings);
  return config;
}

inline std::unique_ptr<Model> MustLoad(const Config& config, DeviceRuntime& device, LayerKind kind = LayerKind::kBest) {
  Result<std::unique_ptr<Model>> model = LoadLlama(config, device, kind);
  CHECK(model.ok()) << model.status().ToString();
  return std::move(model).value();
}

}  // namespace fastdecode::testing
